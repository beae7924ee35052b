//! Least squares with variables that are not negative (Lawson and Hanson, *Solving Least Squares Problems*, chapter 23), for
//! some sixty rows and a hundred columns.

/// A matrix by its columns.
pub struct Matrix {
    /// Columns of equal length.
    pub columns: Vec<Vec<f64>>,
}

/// Columns that add less than this share of their length to those before count as their sum.
const DEPENDENT: f64 = 1e-10;

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

/// Subtracts `times` another vector.
fn subtract(from: &mut [f64], times: f64, other: &[f64]) {
    from.iter_mut().zip(other).for_each(|(from, other)| *from -= times * other);
}

impl Matrix {
    /// `x >= 0` with the least `|A x - target|²`, and that. `None` if it does not converge.
    pub fn nonnegative(&self, target: &[f64]) -> Option<(Vec<f64>, f64)> {
        let count = self.columns.len();
        let mut x = vec![0.0; count];
        let mut passive: Vec<usize> = Vec::new();
        let mut barred = vec![false; count];
        let lengths: Vec<f64> = self.columns.iter().map(|column| dot(column, column).sqrt()).collect();
        for _ in 0..20 * count {
            let rest = self.rest(&x, target);
            let slack = 1e-11 * dot(target, target).sqrt();
            // How fast the distance would fall, by the length of the column.
            let gain = |index: usize| dot(&self.columns[index], &rest) / lengths[index].max(f64::MIN_POSITIVE);
            let candidates = (0..count).filter(|index| !barred[*index] && !passive.contains(index));
            let best = candidates.map(|index| (gain(index), index)).max_by(|one, other| one.0.total_cmp(&other.0));
            let Some((_, entering)) = best.filter(|(gain, _)| *gain > slack) else {
                return Some((x, dot(&rest, &rest)));
            };
            passive.push(entering);
            loop {
                let mut solved = self.solve(&passive, target);
                if passive.last() == Some(&entering) && solved.last().is_some_and(|value| *value <= 0.0) {
                    // It only seemed to help, by rounding.
                    barred[entering] = true;
                    passive.pop();
                    solved = self.solve(&passive, target);
                }
                // As far towards the solution as nothing becomes negative; what becomes zero first leaves.
                let ratio = |(place, value): (usize, &f64)| {
                    let at = x[passive[place]];
                    (at / (at - value).max(f64::MIN_POSITIVE), place)
                };
                let blocked = solved.iter().enumerate().filter(|(_, value)| **value <= 0.0).map(ratio);
                let Some((step, first)) = blocked.min_by(|one, other| one.0.total_cmp(&other.0)) else {
                    passive.iter().zip(&solved).for_each(|(index, value)| x[*index] = *value);
                    break;
                };
                for (index, value) in passive.iter().zip(&solved) {
                    x[*index] = (x[*index] + step * (value - x[*index])).max(0.0);
                }
                x[passive.remove(first)] = 0.0;
            }
            if passive.contains(&entering) {
                barred.fill(false);
            }
        }
        None
    }

    /// `target - A x`.
    fn rest(&self, x: &[f64], target: &[f64]) -> Vec<f64> {
        let mut rest = target.to_vec();
        for (column, value) in self.columns.iter().zip(x).filter(|(_, value)| **value > 0.0) {
            subtract(&mut rest, *value, column);
        }
        rest
    }

    /// Least squares over some columns, by modified Gram-Schmidt with the target as last column.
    fn solve(&self, passive: &[usize], target: &[f64]) -> Vec<f64> {
        let mut basis: Vec<Vec<f64>> = Vec::with_capacity(passive.len());
        let mut upper: Vec<Vec<f64>> = Vec::with_capacity(passive.len());
        for &index in passive {
            let mut column = self.columns[index].clone();
            let whole = dot(&column, &column).sqrt();
            let mut factors = vec![0.0; basis.len()];
            // Twice is enough.
            for _ in 0..2 {
                for (direction, factor) in basis.iter().zip(&mut factors) {
                    let part = dot(direction, &column);
                    *factor += part;
                    subtract(&mut column, part, direction);
                }
            }
            let left = dot(&column, &column).sqrt();
            let left = if left > DEPENDENT * whole { left } else { f64::INFINITY };
            column.iter_mut().for_each(|value| *value /= left);
            factors.push(left);
            basis.push(column);
            upper.push(factors);
        }
        let mut rest = target.to_vec();
        let mut solved: Vec<f64> = Vec::with_capacity(passive.len());
        for direction in &basis {
            let part = dot(direction, &rest);
            subtract(&mut rest, part, direction);
            solved.push(part);
        }
        for index in (0..solved.len()).rev() {
            solved[index] /= upper[index][index];
            let value = solved[index];
            let (before, _) = solved.split_at_mut(index);
            before.iter_mut().zip(&upper[index]).for_each(|(before, factor)| *before -= factor * value);
        }
        solved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn by_hand() {
        let matrix = Matrix { columns: vec![vec![1.0, 0.0], vec![0.0, 1.0]] };
        let (x, distance) = matrix.nonnegative(&[3.0, -2.0]).expect("it converges");
        assert!((x[0] - 3.0).abs() < 1e-12 && x[1] == 0.0 && (distance - 4.0).abs() < 1e-12, "{x:?}");
    }

    proptest! {
        /// The conditions of Kuhn and Tucker: no variable negative, none that could grow to advantage, and no slope along
        /// those that are not zero. They hold at the optimum alone.
        #[test]
        fn solutions_are_optimal(
            (rows, columns) in (2usize..12, 1usize..30),
            numbers in prop::collection::vec(-1.0f64..1.0, 12 * 31),
            exact: bool,
        ) {
            let matrix = Matrix { columns: (0..columns).map(|column| numbers[column * 12..][..rows].to_vec()).collect() };
            let mut target = numbers[30 * 12..][..rows].to_vec();
            if exact {
                // One that is reached.
                target = matrix.columns.iter().fold(vec![0.0; rows], |mut sum, column| {
                    subtract(&mut sum, -0.5, column);
                    sum
                });
            }
            let (x, distance) = matrix.nonnegative(&target).expect("it converges");
            let rest = matrix.rest(&x, &target);
            prop_assert!((dot(&rest, &rest) - distance).abs() < 1e-9);
            prop_assert!(!exact || distance < 1e-9, "{distance}");
            for (column, value) in matrix.columns.iter().zip(&x) {
                let slope = dot(column, &rest);
                prop_assert!(*value >= 0.0 && slope < 1e-7 && (*value == 0.0 || slope.abs() < 1e-7), "{slope} {value}");
            }
        }
    }
}
