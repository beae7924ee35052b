//! The operations of S3 over stores.
//!
//! Objects have their key as name. What the door keeps for itself has names that begin with a NUL byte, which no key
//! holds; see [`names`](crate::names).

mod copy;
mod list;
mod multipart;
mod read;
mod uploads;
mod whole;
mod write;

use crate::buckets::{BucketError, Buckets};
use crate::budget::Budget;
use crate::error::of_store;
use crate::lanes::Lanes;
use ashlar_env::Env;
use ashlar_objects::{Error, List, Name, Session, Store};
use parking_lot::Mutex;
use s3s::dto::*;
use s3s::{S3, S3Error, S3Request, S3Response, S3Result, s3_error};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Longest piece in which a body goes to a store, in bytes.
pub(crate) const PIECE_MAX: u64 = 8 << 20;
/// Most keys, parts or uploads on a page, as S3 has it.
const PAGE_MAX: usize = 1000;
/// Buckets on a page of their list.
const BUCKETS_MAX: usize = 10_000;
/// The one owner of everything: there are no access control lists.
const OWNER: &str = "ashlar";

/// S3 over stores.
pub(crate) struct Gateway {
    env: Env,
    buckets: Arc<dyn Buckets>,
    budget: Budget,
    lanes: Lanes,
    /// Piece of a stream into a store, in bytes, at most.
    piece: u64,
    open: Mutex<BTreeMap<String, Arc<Bucket>>>,
    /// Held while a bucket is opened, made or destroyed.
    changing: tokio::sync::Mutex<()>,
}

/// An open bucket.
pub(crate) struct Bucket {
    store: Store,
    session: Session,
}

impl Gateway {
    pub(crate) fn new(env: Env, buckets: Arc<dyn Buckets>, budget: Budget, piece: u64) -> Gateway {
        Gateway {
            env,
            buckets,
            budget,
            lanes: Lanes::default(),
            piece,
            open: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
        }
    }

    /// A bucket, which is opened if it is not open.
    async fn bucket(&self, name: &str) -> S3Result<Arc<Bucket>> {
        if let Some(bucket) = self.open.lock().get(name) {
            return Ok(bucket.clone());
        }
        let _one = self.changing.lock().await;
        if let Some(bucket) = self.open.lock().get(name) {
            return Ok(bucket.clone());
        }
        let store = self.buckets.open(name).await.map_err(of_bucket)?;
        let bucket = Arc::new(Bucket { store, session: Session::new(self.env.clone()) });
        let swept = bucket.clone();
        // What dead streams left takes space and nothing else, so it need not be gone before the first request.
        drop(self.env.spawn_aside(async move { sweep(&swept).await }));
        self.open.lock().insert(name.into(), bucket.clone());
        Ok(bucket)
    }

    /// Runs work on the runtime of the stores.
    async fn on_env<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        self.env.spawn(work).await
    }

    /// A page of a listing.
    async fn page(&self, store: &Store, request: List) -> S3Result<ashlar_objects::Listing> {
        let store = store.clone();
        self.on_env(async move { store.list(request).await }).await.map_err(of_store)
    }

    async fn destroy(&self, name: &str) -> S3Result<()> {
        let bucket = self.bucket(name).await?;
        let _one = self.changing.lock().await;
        // Parts of uploads go with the bucket; objects do not.
        let from = std::ops::Bound::Included(crate::names::first_key());
        let page = self.page(&bucket.store, List { prefix: vec![], from, limit: 1 }).await?;
        if !page.objects.is_empty() {
            return Err(s3_error!(BucketNotEmpty, "there are objects in {name}; delete them first"));
        }
        self.open.lock().remove(name);
        drop(bucket);
        self.buckets.destroy(name).await.map_err(of_bucket)
    }
}

/// Deletes what streams and uploads left that are dead.
async fn sweep(bucket: &Bucket) {
    // What fails now is tried again when the bucket is opened the next time.
    let _ = bucket.session.collect(&bucket.store).await;
    let _ = multipart::collect(&bucket.store).await;
}

fn of_bucket(error: BucketError) -> S3Error {
    match error {
        BucketError::NotFound => s3_error!(NoSuchBucket, "there is no such bucket; `ashlar bucket list` names all"),
        BucketError::Exists => s3_error!(BucketAlreadyOwnedByYou, "there is such a bucket already"),
        BucketError::Failed(text) => s3_error!(InvalidRequest, "{text}"),
    }
}

/// The name of an object.
fn name_of(key: &str) -> S3Result<Name> {
    crate::names::of_key(key).map_err(of_store)
}

fn timestamp(since_1970: Duration) -> Timestamp {
    Timestamp::from(SystemTime::UNIX_EPOCH + since_1970)
}

/// A size or number as the library has them.
fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn owner() -> Owner {
    Owner { display_name: Some(OWNER.into()), id: Some(OWNER.into()) }
}

/// How many things a page holds of which `asked` were asked for.
fn page_len(asked: Option<i32>, what: &str) -> S3Result<usize> {
    match asked.map(usize::try_from) {
        None => Ok(PAGE_MAX),
        Some(Ok(asked)) => Ok(asked.min(PAGE_MAX)),
        Some(Err(_)) => Err(s3_error!(InvalidArgument, "{what} is negative")),
    }
}

type Answer<T> = S3Result<S3Response<T>>;

fn answer<T>(output: T) -> Answer<T> {
    Ok(S3Response::new(output))
}

#[async_trait::async_trait]
impl S3 for Gateway {
    async fn list_buckets(&self, request: S3Request<ListBucketsInput>) -> Answer<ListBucketsOutput> {
        let input = request.input;
        let prefix = input.prefix.clone().unwrap_or_default();
        let after = input.continuation_token.unwrap_or_default();
        let limit = input.max_buckets.and_then(|most| usize::try_from(most).ok()).unwrap_or(BUCKETS_MAX);
        let all = self.buckets.list().await.map_err(of_bucket)?;
        let mut found = all.into_iter().filter(|bucket| bucket.name.starts_with(&prefix) && bucket.name > after);
        let page: Vec<_> = found.by_ref().take(limit.clamp(1, BUCKETS_MAX)).collect();
        let continuation_token = page.last().filter(|_| found.next().is_some()).map(|last| last.name.clone());
        let bucket = |info: crate::BucketInfo| s3s::dto::Bucket {
            name: Some(info.name),
            creation_date: Some(timestamp(info.created)),
            ..Default::default()
        };
        let buckets = page.into_iter().map(bucket).collect();
        answer(ListBucketsOutput {
            buckets: Some(buckets),
            owner: Some(owner()),
            prefix: input.prefix,
            continuation_token,
        })
    }

    async fn create_bucket(&self, request: S3Request<CreateBucketInput>) -> Answer<CreateBucketOutput> {
        let name = request.input.bucket;
        if !crate::is_bucket_name(&name) {
            return Err(s3_error!(InvalidBucketName, "a bucket's name holds no '.' beside a '-'"));
        }
        let _one = self.changing.lock().await;
        match self.buckets.create(&name).await {
            // As in us-east-1, which this server says it is: what is there already, and whose maker asks again, stays.
            Ok(()) | Err(BucketError::Exists) => {}
            Err(error) => return Err(of_bucket(error)),
        }
        answer(CreateBucketOutput { location: Some(format!("/{name}")) })
    }

    async fn delete_bucket(&self, request: S3Request<DeleteBucketInput>) -> Answer<DeleteBucketOutput> {
        self.destroy(&request.input.bucket).await?;
        answer(DeleteBucketOutput::default())
    }

    async fn head_bucket(&self, request: S3Request<HeadBucketInput>) -> Answer<HeadBucketOutput> {
        self.bucket(&request.input.bucket).await?;
        answer(HeadBucketOutput::default())
    }

    async fn get_bucket_location(&self, request: S3Request<GetBucketLocationInput>) -> Answer<GetBucketLocationOutput> {
        self.bucket(&request.input.bucket).await?;
        answer(GetBucketLocationOutput::default())
    }

    async fn get_bucket_versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> Answer<GetBucketVersioningOutput> {
        self.bucket(&request.input.bucket).await?;
        answer(GetBucketVersioningOutput::default())
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> Answer<PutObjectOutput> {
        self.put(request).await
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> Answer<GetObjectOutput> {
        self.get(request.input).await
    }

    async fn head_object(&self, request: S3Request<HeadObjectInput>) -> Answer<HeadObjectOutput> {
        self.head(request.input).await
    }

    async fn get_object_attributes(
        &self,
        request: S3Request<GetObjectAttributesInput>,
    ) -> Answer<GetObjectAttributesOutput> {
        self.attributes(request.input).await
    }

    async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> Answer<DeleteObjectOutput> {
        self.delete(request.input).await
    }

    async fn delete_objects(&self, request: S3Request<DeleteObjectsInput>) -> Answer<DeleteObjectsOutput> {
        self.delete_many(request.input).await
    }

    async fn copy_object(&self, request: S3Request<CopyObjectInput>) -> Answer<CopyObjectOutput> {
        self.copy(request.input).await
    }

    async fn list_objects(&self, request: S3Request<ListObjectsInput>) -> Answer<ListObjectsOutput> {
        self.list_v1(request.input).await
    }

    async fn list_objects_v2(&self, request: S3Request<ListObjectsV2Input>) -> Answer<ListObjectsV2Output> {
        self.list_v2(request.input).await
    }

    async fn list_object_versions(
        &self,
        request: S3Request<ListObjectVersionsInput>,
    ) -> Answer<ListObjectVersionsOutput> {
        self.versions(request.input).await
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> Answer<CreateMultipartUploadOutput> {
        self.create_upload(request.input).await
    }

    async fn upload_part(&self, request: S3Request<UploadPartInput>) -> Answer<UploadPartOutput> {
        self.put_part(request).await
    }

    async fn upload_part_copy(&self, request: S3Request<UploadPartCopyInput>) -> Answer<UploadPartCopyOutput> {
        self.copy_part(request.input).await
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> Answer<CompleteMultipartUploadOutput> {
        self.complete_upload(request.input).await
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> Answer<AbortMultipartUploadOutput> {
        self.abort_upload(request.input).await
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> Answer<ListPartsOutput> {
        self.parts(request.input).await
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> Answer<ListMultipartUploadsOutput> {
        self.uploads(request.input).await
    }
}
