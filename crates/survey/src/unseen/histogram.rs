//! What a sample of a known whole looks like on average.

/// Numbers of copies that an explanation may use: all up to 30, then a tenth more each time, up to what could still show
/// in the last row.
pub fn mesh(rows: usize, share: f64) -> Vec<u64> {
    let rows = rows as f64;
    let last = ((rows + 3.0 * rows.sqrt() + 3.0) / share).ceil().max(40.0);
    let mut mesh: Vec<u64> = (1..=30).collect();
    let mut copies = 30.0;
    while copies < last {
        copies *= 1.1;
        let next = copies as u64;
        if mesh.last() != Some(&next) {
            mesh.push(next);
        }
    }
    mesh
}

/// Probability that `copies` occurrences show 1, 2, … `rows` times in a sample: `A_p[i][j] = C(j,i) p^i (1-p)^(j-i)`.
pub fn column(copies: u64, rows: usize, share: f64) -> Vec<f64> {
    let mut column = Vec::with_capacity(rows);
    let mut log = copies as f64 * (-share).ln_1p();
    let odds = (share / (1.0 - share)).ln();
    for row in 1..=rows as u64 {
        if row > copies {
            column.push(0.0);
            continue;
        }
        log += ((copies - row + 1) as f64 / row as f64).ln() + odds;
        column.push(log.exp());
    }
    column
}

/// The histogram of a sample that is exactly as expected. `whole[j - 1]` values occur `j` times.
pub fn expected(whole: &[f64], rows: usize, share: f64) -> Vec<f64> {
    let mut sample = vec![0.0; rows];
    for (index, values) in whole.iter().enumerate().filter(|(_, values)| **values > 0.0) {
        for (row, part) in column(index as u64 + 1, rows, share).into_iter().enumerate() {
            sample[row] += values * part;
        }
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_the_moments_of_a_binomial() {
        for copies in [1, 2, 7, 100, 4000] {
            for share in [0.001, 0.01, 0.05, 0.15, 0.5] {
                let column = column(copies, copies as usize, share);
                let sum: f64 = column.iter().sum();
                let mean: f64 = column.iter().zip(1..).map(|(part, row)| part * f64::from(row)).sum();
                let expected = 1.0 - (1.0 - share).powf(copies as f64);
                assert!((sum - expected).abs() < 1e-9, "{copies} {share}: {sum} and {expected}");
                assert!((mean / (share * copies as f64) - 1.0).abs() < 1e-9, "{copies} {share}: {mean}");
            }
        }
    }

    #[test]
    fn meshes_are_ascending_and_reach_far_enough() {
        for rows in [1, 40] {
            for share in [0.01, 0.2] {
                let mesh = mesh(rows, share);
                assert!(mesh.windows(2).all(|pair| pair[0] < pair[1]));
                assert!(*mesh.last().expect("some") as f64 >= rows as f64 / share);
                assert!(mesh.len() < 120, "{}", mesh.len());
            }
        }
    }
}
