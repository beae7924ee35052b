//! The clients that people have, against a live server.

mod common;

use common::{Scratch, Served, attempt, run};

#[test]
fn aws_cli() {
    let served = Served::new();
    let scratch = Scratch::new("aws");
    let (small, large) = (scratch.file("small", 5_000), scratch.file("large", 21_000_001));
    let (small, large, back) = (small.display(), large.display(), scratch.at("back"));
    let back = back.display();
    run(&served, "aws s3 mb s3://photos");
    run(&served, &format!("aws s3 cp {small} s3://photos/a/small --metadata colour=blue --content-type text/x-test"));
    run(&served, &format!("aws s3 cp {large} 's3://photos/a/large with space+%'"));
    for (key, file) in [("a/small", small.to_string()), ("a/large with space+%", large.to_string())] {
        run(&served, &format!("aws s3 cp 's3://photos/{key}' {back} && cmp {file} {back}"));
    }
    let listed = run(&served, "aws s3 ls s3://photos/");
    assert!(listed.contains("PRE a/") && !listed.contains("small"), "{listed}");
    let listed = run(&served, "aws s3 ls s3://photos/a/");
    assert!(listed.contains("5000 small") && listed.contains("21000001 large with space+%"), "{listed}");
    let head = run(&served, "aws s3api head-object --bucket photos --key a/small");
    assert!(head.contains(r#""colour": "blue""#) && head.contains("text/x-test"), "{head}");
    let tag = run(&served, "aws s3api head-object --bucket photos --key 'a/large with space+%' --query ETag");
    assert!(tag.contains("-3"), "three parts: {tag}");
    let part = "aws s3api get-object --bucket photos --key a/small --range bytes=10-19";
    run(&served, &format!("{part} {back} && test $(stat -c %s {back}) = 10 && cmp -n 10 -i 10:0 {small} {back}"));
    let once = format!("aws s3api put-object --bucket photos --key once --body {small} --if-none-match '*'");
    run(&served, &once);
    let (succeeded, said) = attempt(&served, &once);
    assert!(!succeeded && said.contains("PreconditionFailed"), "{said}");
    let url = run(&served, "aws s3 presign s3://photos/a/small");
    run(&served, &format!("curl -sf '{}' -o {back} && cmp {small} {back}", url.trim()));
    run(&served, "aws s3 cp 's3://photos/a/large with space+%' s3://photos/copy");
    run(&served, &format!("aws s3 cp s3://photos/copy {back} && cmp {large} {back}"));
    for kind in ["CRC64NVME", "SHA256"] {
        let put = format!("aws s3api put-object --bucket photos --key sum --body {small} --checksum-algorithm {kind}");
        let said = run(&served, &put);
        assert!(said.contains(&format!("Checksum{kind}")), "{said}");
        run(&served, &format!("aws s3api get-object --bucket photos --key sum --checksum-mode ENABLED {back}"));
    }
    let (succeeded, said) = attempt(&served, "aws s3 rb s3://photos");
    assert!(!succeeded && said.contains("BucketNotEmpty"), "{said}");
    run(&served, "aws s3 rm --recursive s3://photos && aws s3 rb s3://photos");
}

#[test]
fn s3cmd() {
    let served = Served::new();
    let scratch = Scratch::new("s3cmd");
    let (small, large) = (scratch.file("small", 5_000), scratch.file("large", 17_000_001));
    let (small, large, back) = (small.display(), large.display(), scratch.at("back"));
    let back = back.display();
    let s3cmd = "s3cmd --no-progress --no-ssl --host=$HOST --host-bucket=$HOST --access_key=$AWS_ACCESS_KEY_ID \
         --secret_key=$AWS_SECRET_ACCESS_KEY --region=us-east-1 -c /dev/null";
    run(&served, &format!("{s3cmd} mb s3://photos"));
    run(&served, &format!("{s3cmd} put {small} s3://photos/small && {s3cmd} put {large} s3://photos/d/large"));
    let listed = run(&served, &format!("{s3cmd} ls s3://photos"));
    assert!(listed.contains("DIR  s3://photos/d/") && listed.contains("5000  s3://photos/small"), "{listed}");
    run(&served, &format!("{s3cmd} get --force s3://photos/d/large {back} && cmp {large} {back}"));
    run(
        &served,
        &format!("{s3cmd} cp s3://photos/small s3://photos/copy && {s3cmd} mv s3://photos/copy s3://photos/moved"),
    );
    let info = run(&served, &format!("{s3cmd} info s3://photos/moved"));
    assert!(info.contains("File size: 5000"), "{info}");
    run(&served, &format!("{s3cmd} del --recursive --force s3://photos && {s3cmd} rb s3://photos"));
}

#[test]
fn rclone() {
    let served = Served::new();
    let scratch = Scratch::new("rclone");
    std::fs::create_dir_all(scratch.at("tree/deep/deeper")).expect("directories");
    for (name, len) in [("tree/a", 0), ("tree/b c", 1), ("tree/deep/d", 70_000), ("tree/deep/deeper/ü", 12_000_000)] {
        scratch.file(name, len);
    }
    let tree = scratch.at("tree");
    let (tree, back) = (tree.display(), scratch.at("back"));
    let back = back.display();
    let rclone = "rclone --config /dev/null --s3-provider Other --s3-endpoint $ENDPOINT --s3-env-auth --s3-region us-east-1 \
                  --s3-upload-cutoff 6M --s3-chunk-size 5M";
    run(&served, &format!("{rclone} mkdir :s3:photos && {rclone} copy {tree} :s3:photos/tree"));
    run(&served, &format!("{rclone} check {tree} :s3:photos/tree"));
    run(&served, &format!("{rclone} copy :s3:photos/tree {back} && diff -r {tree} {back}"));
    let again = run(&served, &format!("{rclone} sync -v {tree} :s3:photos/tree"));
    assert!(again.contains("There was nothing to transfer"), "{again}");
    run(&served, &format!("{rclone} purge :s3:photos"));
}

#[test]
fn boto3() {
    let served = Served::new();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client.py");
    let said = run(&served, &format!("python {program}"));
    assert!(said.contains("all held"), "{said}");
}
