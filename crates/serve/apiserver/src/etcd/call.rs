//! Calls to etcd, each with a deadline.

use super::unsigned;
use crate::memory::WriteError;
use ambit_proto::etcd::kv_client::KvClient;
use ambit_proto::etcd::response_op::Response;
use ambit_proto::etcd::watch_client::WatchClient;
use ambit_proto::etcd::watch_request::RequestUnion;
use ambit_proto::etcd::{
    CompactionRequest, RangeRequest, RangeResponse, TxnRequest, WatchCreateRequest, WatchRequest,
    WatchResponse,
};
use ambit_store::Revision;
use std::time::Duration;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

/// Deadline of a call.
const CALL_WAIT: Duration = Duration::from_secs(5);
/// Largest answer in bytes. Bounds a page of objects and the events of one watch response.
const ANSWER_BYTES_MAX: usize = 512 << 20;

/// A client. Clones share one connection.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    kv: KvClient<Channel>,
    watch: WatchClient<Channel>,
}

/// What a transaction did.
pub(super) struct TxnOutcome {
    pub(super) succeeded: bool,
    /// The revision that it made; if it did nothing, the newest one that it found.
    pub(super) revision: Revision,
}

impl Calls {
    pub(super) fn new(channel: Channel) -> Self {
        Self {
            kv: KvClient::new(channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX),
            watch: WatchClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX),
        }
    }

    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        let mut kv = self.kv.clone();
        within(kv.range(request)).await
    }

    pub(super) async fn txn(&self, request: TxnRequest) -> Result<TxnOutcome, Status> {
        let mut kv = self.kv.clone();
        let answer = within(kv.txn(request)).await?;
        let newest = answer.responses.iter().find_map(|op| match &op.response {
            Some(Response::ResponseRange(range)) => range.kvs.first().map(|kv| kv.mod_revision),
            _ => None,
        });
        let made = answer.header.map_or(0, |header| header.revision);
        let revision = if answer.succeeded { made } else { newest.unwrap_or_default() };
        Ok(TxnOutcome { succeeded: answer.succeeded, revision: unsigned(revision) })
    }

    pub(super) async fn compact(&self, revision: i64) -> Result<(), Status> {
        let mut kv = self.kv.clone();
        within(kv.compact(CompactionRequest { revision })).await.map(|_| ())
    }

    /// Watches keys from a revision on. The stream ends when the connection does, or its member has no leader.
    pub(super) async fn watch(
        &self,
        (key, end): (Vec<u8>, Vec<u8>),
        from: i64,
    ) -> Result<Streaming<WatchResponse>, Status> {
        let create = WatchCreateRequest {
            key: key.into(),
            range_end: end.into(),
            start_revision: from,
            progress_notify: true,
        };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        // The sending half stays open: etcd takes its end for the end of the watch.
        let requests = futures::StreamExt::chain(
            futures::stream::once(std::future::ready(create)),
            futures::stream::pending(),
        );
        let mut request = Request::new(requests);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let mut watch = self.watch.clone();
        within(watch.watch(request)).await
    }
}

/// The request for one key, as of now.
pub(super) fn one(key: String) -> RangeRequest {
    RangeRequest { key: key.into(), ..RangeRequest::default() }
}

/// What a failed transaction means for the writer.
pub(super) fn txn_error(status: Status) -> WriteError {
    let text = message(&status);
    match status.code() {
        // Source: etcd api/v3rpc/rpctypes/error.go.
        Code::InvalidArgument if text.contains("too large") => WriteError::TooLarge(text),
        Code::ResourceExhausted if text.contains("space exceeded") => WriteError::Full(text),
        Code::InvalidArgument | Code::PermissionDenied | Code::Unauthenticated => {
            WriteError::Unreachable(text)
        }
        _ => WriteError::Uncertain(text),
    }
}

/// A status in words.
pub(super) fn message(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut next = std::error::Error::source(status);
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Some repeat their cause's words.
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    if text.is_empty() { status.code().to_string() } else { text }
}

async fn within<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, Status> {
    match tokio::time::timeout(CALL_WAIT, call).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded(format!("etcd gave no answer within {CALL_WAIT:?}"))),
    }
}
