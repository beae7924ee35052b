//! Mail with fsync, as a server with *maildir* does: a message is written to `tmp`, synced, renamed to `new`, and the directory
//! synced; a reader lists `new`, reads it and renames it to `cur`; some are deleted.

use super::calls::{Caller, Thread, alone};
use super::{Kind, Parameter, Plan, Unit, Values, WorkloadError};
use crate::history::synthetic::Sizes;
use crate::trace::flags::{CREATE, EXCLUSIVE, WRITE};

/// See the module.
pub static MAIL_SYNC: Kind = Kind {
    name: "mailsync",
    what: "threads deliver mails to maildirs with fsync of file and directory, list and read them, and delete some",
    source: "the maildir format (Bernstein); mail+fsync of the prediction checks; numbers ours, sizes lognormal",
    parameters: &[
        Parameter { name: "messages", unit: Unit::Count, default: "1000", what: "messages that each thread delivers" },
        Parameter { name: "boxes", unit: Unit::Count, default: "10", what: "maildirs of each thread" },
        Parameter { name: "median", unit: Unit::Bytes, default: "8KiB", what: "median size of a message" },
        Parameter {
            name: "deviation",
            unit: Unit::Shape,
            default: "1.2",
            what: "standard deviation of the sizes' logarithm",
        },
        Parameter {
            name: "read",
            unit: Unit::Share,
            default: "0.5",
            what: "chance that a mailbox is read after a delivery",
        },
        Parameter {
            name: "delete",
            unit: Unit::Share,
            default: "0.3",
            what: "chance that a message is deleted when it was read",
        },
        Parameter { name: "threads", unit: Unit::Count, default: "4", what: "threads" },
        Parameter { name: "unit", unit: Unit::Bytes, default: "64KiB", what: "bytes of a call" },
    ],
    plan,
};

struct Settings {
    sizes: Sizes,
    read: f64,
    delete: f64,
    unit: u64,
}

fn home(thread: u64, mailbox: u64) -> String {
    format!("/maildir/u{thread}-{mailbox}")
}

fn deliver(caller: &mut Caller, home: &str, number: u64, size: u64, unit: u64) {
    let (temporary, new) = (format!("{home}/tmp/m{number}"), format!("{home}/new/m{number}"));
    let file = caller.open(&temporary, WRITE | CREATE | EXCLUSIVE);
    caller.write_all(&file, 0, size, unit);
    caller.fsync(&file);
    caller.close(file);
    caller.rename(&temporary, &new);
    caller.fsync_directory(&format!("{home}/new"));
}

/// Reads all that is new.
fn fetch(caller: &mut Caller, home: &str, new: &mut Vec<(u64, u64)>, settings: &Settings) {
    // An entry has 24 bytes and its name.
    caller.list(&format!("{home}/new"), 32 * (new.len() as u64 + 2));
    for (number, size) in new.drain(..) {
        let (from, to) = (format!("{home}/new/m{number}"), format!("{home}/cur/m{number}:2,S"));
        caller.stat(&from);
        caller.read_file(&from, size, settings.unit);
        caller.rename(&from, &to);
        if caller.chance.unit() < settings.delete {
            caller.unlink(&to);
        }
    }
}

fn plan(values: &Values) -> Result<Plan, WorkloadError> {
    let (threads, boxes, messages) = (values.threads("threads")?, values.some("boxes")?, values.whole("messages"));
    let unit = values.some("unit")?;
    let median = values.some("median")? as f64;
    let each = |thread| {
        let sizes = Sizes::Lognormal(median, values.number("deviation"));
        let settings = Settings { sizes, read: values.number("read"), delete: values.number("delete"), unit };
        let (mut number, mut new) = (0, vec![Vec::new(); boxes as usize]);
        Thread::new((1, thread, threads), values.seed(), move |caller| {
            if number == messages {
                return false;
            }
            let mailbox = caller.chance.below(boxes);
            let (home, new) = (home(thread, mailbox), &mut new[mailbox as usize]);
            let size = settings.sizes.draw(&mut caller.chance);
            deliver(caller, &home, number, size, unit);
            new.push((number, size));
            if caller.chance.unit() < settings.read {
                fetch(caller, &home, new, &settings);
            }
            number += 1;
            true
        })
    };
    let mut number = 0;
    let setup = alone(0, values.seed(), move |caller| {
        if number == 0 {
            caller.mkdir("/maildir");
        }
        let home = home(number / boxes, number % boxes);
        caller.mkdir(&home);
        ["tmp", "new", "cur"].iter().for_each(|name| caller.mkdir(&format!("{home}/{name}")));
        number += 1;
        number < threads * boxes
    });
    Ok(Plan { setup: vec![setup], run: vec![(0..threads).map(each).collect()] })
}
