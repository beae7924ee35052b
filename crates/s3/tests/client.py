"""What boto3 sees of the server at AWS_ENDPOINT_URL. Every check is an assertion."""

import os
import base64
import builtins
import hashlib
import io
import urllib.request
import zlib

import boto3
import botocore
from botocore.config import Config

plain = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1})
s3 = boto3.client("s3", config=plain)


def fails(code, call, **arguments):
    """The call is refused with this code; gives the HTTP status."""
    try:
        call(**arguments)
    except botocore.exceptions.ClientError as error:
        got = error.response["Error"]["Code"]
        assert got == code, f"{got} instead of {code}: {error}"
        return error.response["ResponseMetadata"]["HTTPStatusCode"]
    raise AssertionError(f"{call} succeeded instead of {code}")


B = "boto"
s3.create_bucket(Bucket=B)
s3.create_bucket(Bucket=B)  # again, which changes nothing
fails("InvalidBucketName", s3.create_bucket, Bucket="dash-.dot")
fails("NoSuchBucket", s3.list_objects_v2, Bucket="none")
assert [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]] == [B]

# Put, get, head: bytes, tag, metadata, headers.
body = b"hello" * 1000
put = s3.put_object(
    Bucket=B, Key="k", Body=body, Metadata={"Colour": "blue"}, ContentType="text/x-a", CacheControl="no-cache",
    ContentDisposition="inline", ContentLanguage="de", ContentEncoding="gzip",
)
assert put["ETag"] == '"' + hashlib.md5(body).hexdigest() + '"', put
got = s3.get_object(Bucket=B, Key="k")
assert got["Body"].read() == body and got["Metadata"] == {"colour": "blue"}
head = s3.head_object(Bucket=B, Key="k")
for name, value in [("ContentType", "text/x-a"), ("CacheControl", "no-cache"), ("ContentDisposition", "inline"),
                    ("ContentLanguage", "de"), ("ContentEncoding", "gzip"), ("ContentLength", 5000)]:
    assert head[name] == value and got[name] == value, (name, head)
assert s3.get_object(Bucket=B, Key="k", ResponseContentType="text/y")["ContentType"] == "text/y"
fails("NoSuchKey", s3.get_object, Bucket=B, Key="none")
assert fails("404", s3.head_object, Bucket=B, Key="none") == 404
s3.put_object(Bucket=B, Key="empty", Body=b"")
assert s3.get_object(Bucket=B, Key="empty")["Body"].read() == b""

# Ranges.
for range, expected in [("bytes=0-0", body[:1]), ("bytes=4990-", body[4990:]), ("bytes=-7", body[-7:]),
                        ("bytes=10-1000000", body[10:])]:
    part = s3.get_object(Bucket=B, Key="k", Range=range)
    assert part["Body"].read() == expected and part["ResponseMetadata"]["HTTPStatusCode"] == 206, range
assert s3.get_object(Bucket=B, Key="k", Range="bytes=1-2")["ContentRange"] == "bytes 1-2/5000"
fails("InvalidRange", s3.get_object, Bucket=B, Key="k", Range="bytes=5000-")

# Conditions.
tag = put["ETag"]
assert fails("304", s3.get_object, Bucket=B, Key="k", IfNoneMatch=tag) == 304
assert fails("304", s3.head_object, Bucket=B, Key="k", IfModifiedSince=head["LastModified"]) == 304
assert fails("PreconditionFailed", s3.get_object, Bucket=B, Key="k", IfMatch='"other"') == 412
fails("PreconditionFailed", s3.get_object, Bucket=B, Key="k", IfUnmodifiedSince="2001-01-01")
s3.get_object(Bucket=B, Key="k", IfMatch=tag)
fails("PreconditionFailed", s3.put_object, Bucket=B, Key="k", Body=b"", IfNoneMatch="*")
fails("PreconditionFailed", s3.put_object, Bucket=B, Key="k", Body=b"", IfMatch='"other"')
fails("NoSuchKey", s3.put_object, Bucket=B, Key="none", Body=b"", IfMatch=tag)
fails("PreconditionFailed", s3.put_object, Bucket=B, Key="k", Body=b"", IfNoneMatch=tag)
s3.put_object(Bucket=B, Key="new", Body=b"0", IfNoneMatch=tag)
fails("PreconditionFailed", s3.delete_object, Bucket=B, Key="new", IfMatchSize=2)
s3.delete_object(Bucket=B, Key="new", IfMatchSize=1)
s3.delete_object(Bucket=B, Key="new", IfMatch=tag)  # it is not there
s3.put_object(Bucket=B, Key="new", Body=b"1", IfNoneMatch="*")
again = s3.put_object(Bucket=B, Key="new", Body=b"2", IfMatch='"' + hashlib.md5(b"1").hexdigest() + '"')
fails("PreconditionFailed", s3.delete_object, Bucket=B, Key="new", IfMatch='"other"')
s3.delete_object(Bucket=B, Key="new", IfMatch=again["ETag"])
fails("NoSuchKey", s3.get_object, Bucket=B, Key="new")

# What the client says about its bytes.
md5 = base64.b64encode(hashlib.md5(b"other").digest()).decode()
fails("BadDigest", s3.put_object, Bucket=B, Key="bad", Body=b"bytes", ContentMD5=md5)
fails("InvalidDigest", s3.put_object, Bucket=B, Key="bad", Body=b"bytes", ContentMD5="YWJj")
fails("BadDigest", s3.put_object, Bucket=B, Key="bad", Body=b"bytes", ChecksumSHA256="A" * 43 + "=")
fails("NoSuchKey", s3.get_object, Bucket=B, Key="bad")
for algorithm in ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"]:
    said = s3.put_object(Bucket=B, Key="sum", Body=body, ChecksumAlgorithm=algorithm)
    found = s3.head_object(Bucket=B, Key="sum", ChecksumMode="ENABLED")
    assert said["Checksum" + algorithm] == found["Checksum" + algorithm], algorithm
assert found["ChecksumSHA256"] == base64.b64encode(hashlib.sha256(body).digest()).decode()

# Odd keys, and long ones.
for key in ["a b", "a+b", "a%b", "ä€😀", "a//b", "/a", "a/../b", ".", "..", "a?b=c&d", "a#b", "\u0001\u0002", "x" * 1024,
            "q'\"<>&`\\|{}^[]~!*()", "trailing/"]:
    s3.put_object(Bucket=B, Key=key, Body=key.encode())
    assert s3.get_object(Bucket=B, Key=key)["Body"].read() == key.encode(), key
    listed = s3.list_objects_v2(Bucket=B, Prefix=key)["Contents"]
    assert listed[0]["Key"] == key, (key, listed)
    s3.delete_object(Bucket=B, Key=key)
fails("KeyTooLongError", s3.put_object, Bucket=B, Key="x" * 1025, Body=b"")

# Listings: pages, delimiters, both versions.
L = "listing"
s3.create_bucket(Bucket=L)
keys = [f"{top}/{number:02}" for top in "abc" for number in builtins.range(7)] + ["a", "b0", "zz"]
for key in keys:
    s3.put_object(Bucket=L, Key=key, Body=b"x")
keys.sort()


def listed(**arguments):
    found = []
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=L, **arguments):
        found += [object["Key"] for object in page.get("Contents", [])]
        found += [prefix["Prefix"] for prefix in page.get("CommonPrefixes", [])]
        assert page["KeyCount"] <= arguments.get("PaginationConfig", {}).get("PageSize", 1000)
    return sorted(found)


for size in [1, 2, 3, 1000]:
    pages = {"PaginationConfig": {"PageSize": size}}
    assert listed(**pages) == keys
    assert listed(Delimiter="/", **pages) == ["a", "a/", "b/", "b0", "c/", "zz"]
    assert listed(Prefix="b/", Delimiter="/", **pages) == [key for key in keys if key.startswith("b/")]
    assert listed(Prefix="b", Delimiter="/", **pages) == ["b/", "b0"]
    assert listed(StartAfter="b/03", **pages) == [key for key in keys if key > "b/03"]
    assert listed(Delimiter="0", Prefix="a/", **pages) == ["a/0"]
found = []
for page in s3.get_paginator("list_objects").paginate(Bucket=L, Delimiter="/", PaginationConfig={"PageSize": 2}):
    found += [object["Key"] for object in page.get("Contents", [])]
    found += [prefix["Prefix"] for prefix in page.get("CommonPrefixes", [])]
assert sorted(found) == ["a", "a/", "b/", "b0", "c/", "zz"], found
assert s3.list_objects_v2(Bucket=L, MaxKeys=0)["KeyCount"] == 0
fails("InvalidArgument", s3.list_objects_v2, Bucket=L, ContinuationToken="!")

# Every object is its one version.
for page in s3.get_paginator("list_object_versions").paginate(Bucket=L, Delimiter="/", PaginationConfig={"PageSize": 2}):
    found = found[len(page.get("Versions", [])) + len(page.get("CommonPrefixes", [])):]
    assert all(version["VersionId"] == "null" and version["IsLatest"] for version in page.get("Versions", []))
assert not found

# Many deleted at once.
gone = s3.delete_objects(Bucket=L, Delete={"Objects": [{"Key": key} for key in keys + ["none"]]})
assert len(gone["Deleted"]) == len(keys) + 1 and not gone.get("Errors")
assert s3.list_objects_v2(Bucket=L)["KeyCount"] == 0
s3.delete_bucket(Bucket=L)

# Uploads in parts.
MIB = 1 << 20
parts = [bytes([number]) * (5 * MIB + number) for number in (1, 2)] + [b"the end"]


def upload(key, **arguments):
    number = s3.create_multipart_upload(Bucket=B, Key=key, **arguments)["UploadId"]
    sent = []
    for index, part in enumerate(parts, 1):
        done = s3.upload_part(Bucket=B, Key=key, UploadId=number, PartNumber=index, Body=part)
        sent.append({"PartNumber": index, "ETag": done["ETag"]})
    return number, sent


number, sent = upload("parts", Metadata={"a": "b"}, ContentType="text/z")
assert [upload["Key"] for upload in s3.list_multipart_uploads(Bucket=B)["Uploads"]] == ["parts"]
listed_parts = s3.list_parts(Bucket=B, Key="parts", UploadId=number, MaxParts=2)
assert [part["Size"] for part in listed_parts["Parts"]] == [len(part) for part in parts[:2]]
assert listed_parts["IsTruncated"] and listed_parts["NextPartNumberMarker"] == 2
fails("NoSuchKey", s3.get_object, Bucket=B, Key="parts")
complete = dict(Bucket=B, Key="parts", UploadId=number)
fails("InvalidPartOrder", s3.complete_multipart_upload, MultipartUpload={"Parts": sent[::-1]}, **complete)
wrong = [{"PartNumber": 1, "ETag": '"' + "0" * 32 + '"'}]
fails("InvalidPart", s3.complete_multipart_upload, MultipartUpload={"Parts": wrong}, **complete)
done = s3.complete_multipart_upload(MultipartUpload={"Parts": sent}, **complete)
md5s = b"".join(hashlib.md5(part).digest() for part in parts)
assert done["ETag"] == f'"{hashlib.md5(md5s).hexdigest()}-3"', done
got = s3.get_object(Bucket=B, Key="parts")
assert got["Body"].read() == b"".join(parts) and got["Metadata"] == {"a": "b"} and got["ContentType"] == "text/z"
assert s3.complete_multipart_upload(MultipartUpload={"Parts": sent}, **complete)["ETag"] == done["ETag"]  # again
s3.copy_object(Bucket=B, Key="parts", CopySource={"Bucket": B, "Key": "parts"}, MetadataDirective="REPLACE")
for index, part in enumerate(parts, 1):
    got = s3.get_object(Bucket=B, Key="parts", PartNumber=index)
    assert got["Body"].read() == part and got["PartsCount"] == 3 and got["ETag"] == done["ETag"], index
fails("InvalidPart", s3.get_object, Bucket=B, Key="parts", PartNumber=4)
fails("InvalidPart", s3.get_object, Bucket=B, Key="k", PartNumber=2)
assert s3.get_object(Bucket=B, Key="k", PartNumber=1)["Body"].read() == body
number, sent = upload("small")
small = s3.upload_part(Bucket=B, Key="small", UploadId=number, PartNumber=1, Body=b"tiny")
sent[0]["ETag"] = small["ETag"]
complete = dict(Bucket=B, Key="small", UploadId=number)
fails("EntityTooSmall", s3.complete_multipart_upload, MultipartUpload={"Parts": sent}, **complete)
s3.abort_multipart_upload(**complete)
fails("NoSuchUpload", s3.abort_multipart_upload, **complete)
fails("NoSuchUpload", s3.upload_part, Body=b"", PartNumber=1, **complete)
assert "Uploads" not in s3.list_multipart_uploads(Bucket=B)

# Checksums of uploads in parts: of the parts', and of the whole.
whole = b"".join(parts)
for algorithm, kind in [("CRC32", "COMPOSITE"), ("CRC32C", "COMPOSITE"), ("SHA256", "COMPOSITE"), ("CRC32", "FULL_OBJECT"),
                        ("CRC64NVME", "FULL_OBJECT")]:
    start = dict(Bucket=B, Key="summed", ChecksumAlgorithm=algorithm, ChecksumType=kind)
    number = s3.create_multipart_upload(**start)["UploadId"]
    sent = []
    for index, part in enumerate(parts, 1):
        done = s3.upload_part(Bucket=B, Key="summed", UploadId=number, PartNumber=index, Body=part,
                              ChecksumAlgorithm=algorithm)
        name = "Checksum" + algorithm
        sent.append({"PartNumber": index, "ETag": done["ETag"], name: done[name]})
    done = s3.complete_multipart_upload(Bucket=B, Key="summed", UploadId=number, MultipartUpload={"Parts": sent},
                                        ChecksumType=kind)
    assert done["ChecksumType"] == kind, done
    if (algorithm, kind) == ("CRC32", "FULL_OBJECT"):
        assert done["ChecksumCRC32"] == base64.b64encode(zlib.crc32(whole).to_bytes(4, "big")).decode(), done
    elif algorithm == "SHA256":
        digests = b"".join(hashlib.sha256(part).digest() for part in parts)
        assert done["ChecksumSHA256"] == base64.b64encode(hashlib.sha256(digests).digest()).decode() + "-3", done
    head = s3.head_object(Bucket=B, Key="summed", ChecksumMode="ENABLED")
    assert head["Checksum" + algorithm] == done["Checksum" + algorithm] and head["ChecksumType"] == kind

# Copies.
s3.copy_object(Bucket=B, Key="copy", CopySource={"Bucket": B, "Key": "k"})
copy = s3.get_object(Bucket=B, Key="copy")
assert copy["Body"].read() == body and copy["Metadata"] == {"colour": "blue"} and copy["ETag"] == tag
s3.copy_object(Bucket=B, Key="copy", CopySource={"Bucket": B, "Key": "k"}, MetadataDirective="REPLACE",
               Metadata={"x": "y"}, ContentType="text/w")
copy = s3.head_object(Bucket=B, Key="copy")
assert copy["Metadata"] == {"x": "y"} and copy["ContentType"] == "text/w" and copy["ETag"] == tag
s3.copy_object(Bucket=B, Key="copy", CopySource={"Bucket": B, "Key": "copy"}, MetadataDirective="REPLACE",
               Metadata={"x": "z"})
copy = s3.get_object(Bucket=B, Key="copy")
assert copy["Metadata"] == {"x": "z"} and copy["ETag"] == tag and copy["Body"].read() == body
itself = dict(Bucket=B, Key="copy", CopySource={"Bucket": B, "Key": "copy"})
fails("InvalidRequest", s3.copy_object, **itself)
fails("PreconditionFailed", s3.copy_object, CopySourceIfMatch='"other"', Bucket=B, Key="c", CopySource=itself["CopySource"])
fails("NoSuchKey", s3.copy_object, Bucket=B, Key="c", CopySource={"Bucket": B, "Key": "none"})
number = s3.create_multipart_upload(Bucket=B, Key="assembled")["UploadId"]
source = {"Bucket": B, "Key": "parts"}
first = s3.upload_part_copy(Bucket=B, Key="assembled", UploadId=number, PartNumber=1, CopySource=source)
second = s3.upload_part_copy(Bucket=B, Key="assembled", UploadId=number, PartNumber=2, CopySource=source,
                             CopySourceRange="bytes=3-12")
sent = [{"PartNumber": index, "ETag": done["CopyPartResult"]["ETag"]} for index, done in enumerate([first, second], 1)]
s3.complete_multipart_upload(Bucket=B, Key="assembled", UploadId=number, MultipartUpload={"Parts": sent})
assert s3.get_object(Bucket=B, Key="assembled")["Body"].read() == whole + whole[3:13]

# The high-level transfer, which uses many connections.
big = bytes(builtins.range(251)) * 100_000
s3.upload_fileobj(io.BytesIO(big), B, "big")
back = io.BytesIO()
s3.download_fileobj(B, "big", back)
assert back.getvalue() == big

# Presigned URLs.
url = s3.generate_presigned_url("get_object", Params={"Bucket": B, "Key": "k"}, ExpiresIn=60)
assert urllib.request.urlopen(url).read() == body
assert "AWSAccessKeyId" in url  # boto3 still makes URLs of version 2 by itself
v4 = boto3.client("s3", config=plain.merge(Config(signature_version="s3v4")))
url = v4.generate_presigned_url("get_object", Params={"Bucket": B, "Key": "k"}, ExpiresIn=60)
assert "X-Amz-Signature" in url and urllib.request.urlopen(url).read() == body
url = v4.generate_presigned_url("put_object", Params={"Bucket": B, "Key": "signed"}, ExpiresIn=60)
urllib.request.urlopen(urllib.request.Request(url, data=b"through a URL", method="PUT"))
assert s3.get_object(Bucket=B, Key="signed")["Body"].read() == b"through a URL"
try:
    urllib.request.urlopen(url[:-1] + ("0" if url[-1] != "0" else "1"))
    raise AssertionError("a changed signature was taken")
except urllib.error.HTTPError as error:
    assert error.code == 403 and b"SignatureDoesNotMatch" in error.read()

# Attributes of objects.
about = s3.get_object_attributes(Bucket=B, Key="k", ObjectAttributes=["ETag", "ObjectSize", "StorageClass"])
assert about["ETag"] == tag.strip('"') and about["ObjectSize"] == 5000 and about["StorageClass"] == "STANDARD"

# What is not done here says so.
fails("NotImplemented", s3.put_object, Bucket=B, Key="t", Body=b"", Tagging="a=b")
fails("MetadataTooLarge", s3.put_object, Bucket=B, Key="t", Body=b"", Metadata={"a": "x" * 3000})
stranger = boto3.client("s3", config=plain, aws_access_key_id="NOBODY", aws_secret_access_key="x")
fails("InvalidAccessKeyId", stranger.list_buckets)
liar = boto3.client("s3", config=plain, aws_access_key_id=os.environ["AWS_ACCESS_KEY_ID"], aws_secret_access_key="x")
fails("SignatureDoesNotMatch", liar.list_buckets)
unsigned = boto3.client("s3", config=Config(signature_version=botocore.UNSIGNED, s3={"addressing_style": "path"}))
fails("AccessDenied", unsigned.list_buckets)

for page in s3.get_paginator("list_objects_v2").paginate(Bucket=B):
    s3.delete_objects(Bucket=B, Delete={"Objects": [{"Key": object["Key"]} for object in page["Contents"]]})
s3.delete_bucket(Bucket=B)
assert s3.list_buckets()["Buckets"] == []
print("all held")
