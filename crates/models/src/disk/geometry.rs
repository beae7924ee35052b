//! From sector numbers to places on the platters.
//!
//! Zones lie one behind another from the outer edge inwards. Inside a zone the layout is *surface serpentine*: a band of
//! neighbouring cylinders is filled surface by surface, inwards on the first, outwards on the second, and so on; then
//! comes the next band. Sector 0 of each track is skewed against that of the track before, by the cylinder skew when the
//! arm steps, and by the track skew when the head changes.
//!
//! Angles are times: the nanoseconds that pass, at the speed of rotation, from the index mark.

use crate::io::SECTOR;

/// Cylinders with the same number of sectors on each track.
#[derive(Clone, Copy, Debug)]
struct Zone {
    first_sector: u64,
    first_cylinder: u32,
    cylinders: u32,
    sectors_per_track: u32,
    /// Angle of the first sector of the zone.
    angle_ns: u64,
}

/// Where a sector is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Cylinder, counted from the outer edge.
    pub cylinder: u32,
    /// Surface.
    pub surface: u32,
    /// Sector of the track.
    pub sector: u32,
    /// Sectors of the track.
    pub sectors_per_track: u32,
    /// Angle of the track's sector 0.
    pub track_angle_ns: u64,
}

/// The layout of a drive.
#[derive(Clone, Debug)]
pub struct Geometry {
    zones: Vec<Zone>,
    surfaces: u32,
    band: u32,
    cylinder_skew_ns: u64,
    track_skew_ns: u64,
    revolution_ns: u64,
    sectors: u64,
    cylinders: u32,
}

impl Geometry {
    /// `zones` are pairs of cylinders and sectors per track; all values are positive and the sums fit.
    pub fn new(
        zones: &[(u32, u32)],
        surfaces: u32,
        band: u32,
        revolution_ns: u64,
        cylinder_skew_ns: u64,
        track_skew_ns: u64,
    ) -> Geometry {
        let mut geometry = Geometry {
            zones: Vec::with_capacity(zones.len()),
            surfaces,
            band,
            cylinder_skew_ns,
            track_skew_ns,
            revolution_ns,
            sectors: 0,
            cylinders: 0,
        };
        let mut angle_ns = 0;
        for &(cylinders, sectors_per_track) in zones {
            geometry.zones.push(Zone {
                first_sector: geometry.sectors,
                first_cylinder: geometry.cylinders,
                cylinders,
                sectors_per_track,
                angle_ns,
            });
            geometry.sectors += u64::from(cylinders) * u64::from(surfaces) * u64::from(sectors_per_track);
            geometry.cylinders += cylinders;
            let last = geometry.place(geometry.sectors - 1);
            angle_ns = (last.track_angle_ns + track_skew_ns) % revolution_ns;
        }
        geometry
    }

    /// Sectors that the platters hold.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Bytes that the platters hold.
    pub fn bytes(&self) -> u64 {
        self.sectors * SECTOR
    }

    /// Cylinders in all.
    pub fn cylinders(&self) -> u32 {
        self.cylinders
    }

    /// Time of one revolution.
    pub fn revolution_ns(&self) -> u64 {
        self.revolution_ns
    }

    /// First sector of each zone, with its sectors per track.
    pub fn zones(&self) -> impl Iterator<Item = (u64, u32)> {
        self.zones.iter().map(|zone| (zone.first_sector, zone.sectors_per_track))
    }

    /// Where a sector is; the sector exists.
    pub fn place(&self, sector: u64) -> Place {
        let zone = &self.zones[self.zones.partition_point(|zone| zone.first_sector <= sector) - 1];
        let inside = sector - zone.first_sector;
        let track = (inside / u64::from(zone.sectors_per_track)) as u32;
        let sector = (inside % u64::from(zone.sectors_per_track)) as u32;
        let band = track / (self.band * self.surfaces);
        let of_band = track % (self.band * self.surfaces);
        let width = self.band.min(zone.cylinders - band * self.band);
        let surface = of_band / width;
        let step = of_band % width;
        let step = if surface.is_multiple_of(2) { step } else { width - 1 - step };
        let head_changes = u64::from(band * self.surfaces + surface);
        let skew = (u64::from(track) - head_changes) * self.cylinder_skew_ns + head_changes * self.track_skew_ns;
        Place {
            cylinder: zone.first_cylinder + band * self.band + step,
            surface,
            sector,
            sectors_per_track: zone.sectors_per_track,
            track_angle_ns: (zone.angle_ns + skew) % self.revolution_ns,
        }
    }

    /// Angle at which a sector of a place's track begins.
    pub fn angle_ns(&self, place: &Place) -> u64 {
        let angle = place.track_angle_ns + self.offset_ns(place, place.sector);
        if angle >= self.revolution_ns { angle - self.revolution_ns } else { angle }
    }

    /// Time from the start of sector 0 of a track to the start of a later one.
    pub fn offset_ns(&self, place: &Place, sector: u32) -> u64 {
        u64::from(sector) * self.revolution_ns / u64::from(place.sectors_per_track)
    }

    /// Time from `now_ns` until an angle comes under the head.
    pub fn wait_ns(&self, angle_ns: u64, now_ns: u64) -> u64 {
        let here = now_ns % self.revolution_ns;
        if angle_ns >= here { angle_ns - here } else { angle_ns + self.revolution_ns - here }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn small() -> Geometry {
        Geometry::new(&[(10, 20), (7, 16), (3, 9)], 3, 4, 8_333_333, 500_000, 900_000)
    }

    #[test]
    fn every_sector_has_a_place_of_its_own() {
        let geometry = small();
        let mut seen = std::collections::HashSet::new();
        for sector in 0..geometry.sectors() {
            let place = geometry.place(sector);
            assert!(place.cylinder < geometry.cylinders() && place.surface < 3);
            assert!(seen.insert((place.cylinder, place.surface, place.sector)), "{place:?} twice");
        }
        assert_eq!(seen.len() as u64, 3 * (10 * 20 + 7 * 16 + 3 * 9));
    }

    #[test]
    fn neighbouring_tracks_are_one_step_or_one_band_apart() {
        let geometry = small();
        for sector in 1..geometry.sectors() {
            let (before, here) = (geometry.place(sector - 1), geometry.place(sector));
            if here.sector == 0 {
                let steps = before.cylinder.abs_diff(here.cylinder);
                let head_changed = before.surface != here.surface;
                assert!(steps <= 4 && (head_changed || steps == 1), "{before:?} then {here:?}");
            }
        }
    }

    #[test]
    fn surfaces_are_traversed_in_opposite_directions() {
        let geometry = Geometry::new(&[(130, 10)], 2, 65, 4_000_000, 0, 0);
        let cylinder = |track: u64| geometry.place(track * 10).cylinder;
        assert_eq!((cylinder(0), cylinder(64), cylinder(65), cylinder(129), cylinder(130)), (0, 64, 64, 0, 65));
    }

    proptest! {
        #[test]
        fn waiting_brings_the_angle_under_the_head(now in 0u64..1 << 50, angle in 0u64..8_333_333) {
            let geometry = small();
            let wait = geometry.wait_ns(angle, now);
            prop_assert!(wait < 8_333_333);
            prop_assert_eq!((now + wait) % 8_333_333, angle);
        }
    }
}
