use super::*;
use crate::predict::step::{Kind, Step};
use crate::vector::Value;

const MS: u64 = 1_000_000;

fn vector(values: &[(Family, u64, f64)]) -> Vector {
    let mut vector = Vector::named("exact");
    values.iter().for_each(|(family, size, mean)| vector.set(*family, *size, Value::exact(*mean)));
    vector
}

/// A call of a thread on a file, alone in its chain.
fn call(thread: u64, op: Op, kind: Kind, inode: u64) -> Chain {
    vec![Step { thread, op: Some(op), kind, inode, directory: 1, ..Step::default() }]
}

fn milliseconds(price: &mut Price, mut chain: Chain) -> f64 {
    price.apply(&mut chain);
    chain[0].predicted_ns as f64 / 1e6
}

/// A job of one stat uses all of what is shared: of two the second ends when both are done.
#[test]
fn who_shares_waits() {
    let vector = vector(&[(Family::STAT, 0, 1.0), (Family::PCA, 1, 1.0), (Family::PCA, 2, 2.0)]);
    let stat = |thread| call(thread, Op::Stat, Kind::Call, 9);
    let mut price = Price::new(vector.clone(), PriceOptions::default());
    assert_eq!([1, 2, 1, 2].map(|thread| milliseconds(&mut price, stat(thread))), [1.0, 2.0, 2.0, 2.0]);
    assert_eq!(price.elapsed(), 0.004);
    let without = Without { sharing: true, ..Without::default() };
    let mut price = Price::new(vector, PriceOptions { without, ..PriceOptions::default() });
    assert_eq!([1, 2, 1, 2].map(|thread| milliseconds(&mut price, stat(thread))), [1.0; 4]);
    assert_eq!(price.elapsed(), 0.002);
}

#[test]
fn what_another_makes_is_waited_for() {
    let vector = vector(&[(Family::CR, 0, 5.0), (Family::STAT, 0, 1.0)]);
    let mut price = Price::new(vector, PriceOptions::default());
    price.apply(&mut call(1, Op::Open, Kind::Create, 7));
    assert_eq!((price.end(1), price.end(2)), (5 * MS, 0));
    let stat = call(2, Op::Stat, Kind::Call, 7);
    assert_eq!(price.now(&stat), 0);
    price.wait_until(5 * MS);
    assert_eq!(price.now(&stat), 5 * MS);
    price.apply(&mut stat.clone());
    assert_eq!(price.elapsed(), 0.006);
    assert_eq!(price.now(&stat), 6 * MS, "it waited once");
}
