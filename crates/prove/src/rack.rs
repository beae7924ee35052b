//! Media that lose their power at one moment, and what each holds then.

use ashlar_array::NamedDevice;
use ashlar_devices::{Power, PowerCut, Tearing};
use ashlar_env::Env;
use ashlar_units::Blocks;
use std::sync::Arc;
use std::time::Duration;

/// See the module.
pub(crate) struct Rack {
    env: Env,
    capacity: Blocks,
    pub media: Vec<Arc<PowerCut>>,
    power: Power,
}

impl Rack {
    /// Empty media of this capacity each.
    pub fn new(env: &Env, members: usize, capacity: Blocks) -> Rack {
        let mut rack = Rack { env: env.clone(), capacity, media: Vec::new(), power: Power::default() };
        rack.media = (0..members).map(|_| rack.fresh()).collect();
        rack
    }
    /// An empty medium, fed as the others are.
    pub fn fresh(&self) -> Arc<PowerCut> {
        Arc::new(PowerCut::new(self.capacity, self.env.clone(), Duration::from_micros(50)).on(&self.power))
    }
    /// The media as members of an array.
    pub fn named(&self) -> Vec<NamedDevice> {
        let named = |(slot, medium): (usize, &Arc<PowerCut>)| NamedDevice {
            name: format!("member{slot}"),
            device: medium.clone(),
        };
        self.media.iter().enumerate().map(named).collect()
    }
    /// What the media hold after the power was cut, fed by `power` from now on; one of them, perhaps, by a supply of its own.
    pub fn after_cut(&mut self, power: &Power, alone: Option<usize>) {
        let survive = |(slot, medium): (usize, &Arc<PowerCut>)| {
            let survivor = medium.after_cut(Tearing::ALL, self.env.clone());
            Arc::new(if alone == Some(slot) { survivor } else { survivor.on(power) })
        };
        self.media = self.media.iter().enumerate().map(survive).collect();
        self.power = power.clone();
    }
    /// Cuts the power of all but one after so many operations.
    pub fn cut_after(&self, alone: Option<usize>, operations: u64) {
        let fed = self.media.iter().enumerate().find(|(slot, _)| alone != Some(*slot));
        fed.into_iter().for_each(|(_, medium)| medium.cut_after(operations));
    }
}
