//! `ashlar device serve`, through the front door: who is refused, and how it ends.

mod served;

use served::{Scratch, Served, refused};
use std::path::Path;
use std::process::Command;

#[test]
fn a_backing_file_is_served_once_and_let_go_by_ctrl_c() {
    let scratch = Scratch::new("once");
    let (image, socket) = (scratch.at("d.img"), scratch.at("one"));
    let options = ["--backing", &image, "--size", "16MiB"];
    let served = Served::start(scratch.serve("device", &options, "one"), &socket);
    let said = refused(&scratch.serve("device", &options, "two").output().expect("it runs"));
    assert!(said.contains("in use by another process"), "{said}");
    let said = refused(&scratch.serve("device", &["--size", "16MiB"], "one").output().expect("it runs"));
    assert!(said.contains("another server does"), "{said}");
    let (well, said) = served.interrupt();
    assert!(well && said.contains("everything is written"), "{said}");
    assert!(!Path::new(&socket).exists(), "the socket is gone");
    // It can be served again at once.
    let (well, said) = Served::start(scratch.serve("device", &options, "one"), &socket).interrupt();
    assert!(well, "{said}");
}

#[test]
fn addresses_that_others_reach_need_tls() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ashlar"));
    command.args(["device", "serve", "--size", "16MiB", "--nbd", "tcp:0.0.0.0:0"]);
    let said = refused(&command.output().expect("it runs"));
    assert!(said.contains("refusing to serve") && said.contains("TLS"), "{said}");
}

const MODEL: &str = "name = \"m\"\nwhat = \"a model\"\nnot_modelled = [\"all\"]\n[sources]\nall = \"ours\"\n[model.generic]\n\
                     capacity = \"1GiB\"\ndepth = 8\nread_us.constant = 100\nwrite_us.constant = 100\nflush_us.constant = 100\n\
                     mb_s.constant = 100\n";

#[test]
fn a_model_file_with_an_impossible_value_names_it_and_the_law() {
    let scratch = Scratch::new("model");
    let path = scratch.at("m.toml");
    for (from, to, named) in [
        ("capacity = \"1GiB\"", "capacity = \"99999999999EiB\"", ["capacity", "not a size"]),
        ("depth = 8", "depth = 0", ["depth = 0", "1 to 65,536 requests"]),
        ("read_us.constant = 100", "read_us.constant = -1", ["read_us", "a number from 0"]),
        ("mb_s.constant = 100", "mb_s.constant = nan", ["mb_s", "a number from 0.001"]),
        ("depth = 8", "depth = 8\ncolour = 3", ["colour", "unknown field"]),
        ("name = \"m\"", "name = ", ["TOML parse error", "line 1"]),
    ] {
        assert!(MODEL.contains(from), "{from}");
        std::fs::write(&path, MODEL.replace(from, to)).expect("written");
        let said = refused(&scratch.serve("device", &[&path], "s").output().expect("it runs"));
        assert!(named.iter().all(|what| said.contains(what)), "{to}: {said}");
    }
    let noise: Vec<u8> = (0..100_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(&path, noise).expect("written");
    let said = refused(&scratch.serve("device", &[&path], "s").output().expect("it runs"));
    assert!(said.contains("m.toml"), "{said}");
    std::fs::write(&path, MODEL).expect("written");
    let (well, said) = Served::start(scratch.serve("device", &[&path], "s"), &scratch.at("s")).interrupt();
    assert!(well, "{said}");
}

#[test]
fn a_full_backing_disk_is_no_space_and_keeps_what_is_there() {
    let scratch = Scratch::new("full");
    let disk = scratch.at("disk");
    std::fs::create_dir(&disk).expect("made");
    let shell = |line: String| Command::new("bash").arg("-c").arg(line).output().expect("a shell");
    if !shell("command -v qemu-io".into()).status.success() {
        return println!("SKIPPED: there is no qemu-io");
    }
    if !shell(format!("mount -t tmpfs -o size=8m none {disk}")).status.success() {
        return println!("SKIPPED: no right to mount");
    }
    let (image, socket) = (format!("{disk}/d.img"), scratch.at("s"));
    let served = Served::start(scratch.serve("device", &["--backing", &image, "--size", "64MiB"], "s"), &socket);
    let qemu = |commands: &str| {
        let output = shell(format!("qemu-io -f raw {commands} 'nbd+unix:///?socket={socket}' 2>&1"));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let kept = qemu("-c 'write -P 7 0 4M' -c flush");
    let full = qemu("-c 'write -P 9 8M 16M'");
    let after = qemu("-c 'read -P 7 0 4M' -c 'discard 8M 16M' -c 'write -P 5 1M 64k' -c 'read -P 5 1M 64k'");
    let (well, said) = served.interrupt();
    shell(format!("umount {disk}"));
    assert!(kept.contains("wrote 4194304/4194304") && !kept.contains("fail"), "{kept}");
    assert!(full.contains("No space left on device"), "{full}");
    assert!(!after.contains("fail") && !after.contains("rror"), "{after}");
    assert!(well, "{said}");
}

#[test]
fn a_model_is_probed_in_its_own_pages() {
    let found = |arguments: &[&str]| -> serde_json::Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ashlar"));
        let output =
            command.args(["device", "probe", "usb-memorex", "--json"]).args(arguments).output().expect("it runs");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    };
    let own = found(&[]);
    assert_eq!(
        (&own["page_bytes"], &own["updates_per_log"], &own["log_blocks"]),
        (&2048.into(), &55.into(), &4.into())
    );
    assert_eq!(own["static_wear_every"], 138);
    assert_eq!(found(&["--page", "4KiB"])["page_bytes"], 4096);
}
