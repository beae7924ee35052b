//! The clients that people have, against a live server.

mod common;

use common::{Aws, Scratch, Served, run};

#[test]
fn aws_cli() {
    let served = Served::new();
    let mut aws = Aws::new(&served);
    let scratch = Scratch::new("aws");
    let (small, large) = (scratch.file("small", 5_000), scratch.file("large", 21_000_001));
    let (small, large) = (small.to_str().expect("text"), large.to_str().expect("text"));
    let back = scratch.at("back");
    let back = back.to_str().expect("text");
    let same =
        |file: &str| assert!(std::fs::read(file).expect("a file") == std::fs::read(back).expect("a file"), "{file}");
    let spaced = "s3://photos/a/large with space+%";
    aws.run(&["s3", "mb", "s3://photos"]);
    let said = ["--metadata", "colour=blue", "--content-type", "text/x-test"];
    aws.run(&[&["s3", "cp", small, "s3://photos/a/small"], &said[..]].concat());
    aws.run(&["s3", "cp", large, spaced]);
    for (object, file) in [("s3://photos/a/small", small), (spaced, large)] {
        aws.run(&["s3", "cp", object, back]);
        same(file);
    }
    let listed = aws.run(&["s3", "ls", "s3://photos/"]);
    assert!(listed.contains("PRE a/") && !listed.contains("small"), "{listed}");
    let listed = aws.run(&["s3", "ls", "s3://photos/a/"]);
    assert!(listed.contains("5000 small") && listed.contains("21000001 large with space+%"), "{listed}");
    let photos = ["--bucket", "photos", "--key"];
    let head = aws.run(&[&["s3api", "head-object"], &photos[..], &["a/small"]].concat());
    assert!(head.contains(r#""colour": "blue""#) && head.contains("text/x-test"), "{head}");
    let tag = aws.run(&[&["s3api", "head-object", "--query", "ETag"], &photos[..], &["a/large with space+%"]].concat());
    assert!(tag.contains("-3"), "three parts: {tag}");
    aws.run(&[&["s3api", "get-object", "--range", "bytes=10-19"], &photos[..], &["a/small", back]].concat());
    assert_eq!(std::fs::read(back).expect("a file"), std::fs::read(small).expect("a file")[10..20]);
    let put = |more: &[&'static str]| -> Vec<&str> { [&["s3api", "put-object", "--body", small], more].concat() };
    let once = put(&["--bucket", "photos", "--key", "once", "--if-none-match", "*"]);
    aws.run(&once);
    let (succeeded, said) = aws.attempt(&once);
    assert!(!succeeded && said.contains("PreconditionFailed"), "{said}");
    let url = aws.run(&["s3", "presign", "s3://photos/a/small"]);
    run(&served, &format!("curl -sf '{}' -o {back} && cmp {small} {back}", url.trim()));
    aws.run(&["s3", "cp", spaced, "s3://photos/copy"]);
    aws.run(&["s3", "cp", "s3://photos/copy", back]);
    same(large);
    for kind in ["CRC64NVME", "SHA256"] {
        let said = aws.run(&put(&["--bucket", "photos", "--key", "sum", "--checksum-algorithm", kind]));
        assert!(said.contains(&format!("Checksum{kind}")), "{said}");
        aws.run(&[&["s3api", "get-object", "--checksum-mode", "ENABLED"], &photos[..], &["sum", back]].concat());
    }
    let (succeeded, said) = aws.attempt(&["s3", "rb", "s3://photos"]);
    assert!(!succeeded && said.contains("BucketNotEmpty"), "{said}");
    aws.run(&["s3", "rm", "--recursive", "s3://photos"]);
    aws.run(&["s3", "rb", "s3://photos"]);
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
