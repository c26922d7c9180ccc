//! The conversation with one proxy.

use super::{Assigned, Command, HandOver, Message, Outcome};
use ambit_linux::seqpacket::Connection;
use ambit_node_plan::handover::Request;
use ambit_proto::zds::workload_request::Payload;
use ambit_proto::zds::{
    AddWorkload, DelWorkload, KeepWorkload, SnapshotSent, Version, WorkloadInfo, WorkloadRequest,
    WorkloadResponse, ZdsHello, workload_response,
};
use prost::Message as _;
use std::os::fd::AsFd;
use std::time::Duration;

/// Receive buffer of both sides of the protocol.
const PACKET_BYTES_MAX: usize = 1024;
/// Time for the hello, for one write and for one acknowledgement. Source: the field's agent.
const STEP_DEADLINE: Duration = Duration::from_secs(5);

/// Waits for the proxy's hello.
pub(super) async fn greet(proxy: &Connection) -> Result<(), String> {
    let hello =
        ZdsHello::decode(receive(proxy).await?.as_slice()).map_err(|e| format!("not a hello: {e}"))?;
    match Version::try_from(hello.version) {
        Ok(Version::V1) => Ok(()),
        _ => Err(format!("version {} of the protocol is not supported, only 1 is", hello.version)),
    }
}

/// Sends the snapshot and then what comes, until the proxy is gone or does not keep to the protocol: the reason.
pub(super) async fn serve(proxy: &Connection, assigned: Assigned, owner: &HandOver) -> String {
    let Assigned { id, snapshot, mut messages } = assigned;
    for message in snapshot {
        if let Err(problem) = deliver(proxy, message, id, owner).await {
            return problem;
        }
    }
    loop {
        // Both branches are cancel safe.
        let message = tokio::select! {
            message = messages.recv() => message,
            packet = proxy.recv(PACKET_BYTES_MAX) => return match packet {
                Ok(None) => "it closed the connection".into(),
                Ok(Some(_)) => "it sent a message without being asked".into(),
                Err(error) => error.to_string(),
            },
        };
        let Some(message) = message else { return "the agent closed the connection".into() };
        if let Err(problem) = deliver(proxy, message, id, owner).await {
            return problem;
        }
    }
}

/// Sends one message and waits for its acknowledgement. An error ends the connection; a refusal does not.
async fn deliver(proxy: &Connection, message: Message, id: u64, owner: &HandOver) -> Result<(), String> {
    let Message { request, pod, done } = message;
    let bytes = encode(&request, pod.as_ref()).encode_to_vec();
    let exchanged = async {
        let descriptor = pod.as_ref().map(|pod| pod.netns.as_fd());
        match tokio::time::timeout(STEP_DEADLINE, proxy.send(&bytes, descriptor)).await {
            Ok(sent) => sent.map_err(|e| e.to_string())?,
            Err(_) => return Err("it does not read its messages".into()),
        }
        acknowledgement(&receive(proxy).await?)
    };
    let (outcome, end) = match exchanged.await {
        Ok(outcome) => (outcome, Ok(())),
        Err(problem) => (Err(format!("the connection to the proxy was lost: {problem}")), Err(problem)),
    };
    if let Request::Add { uid, generation } = request {
        let waited_for = done.is_some();
        let answer = Command::Answered { id, uid, generation, outcome: outcome.clone() };
        // Whoever waits learns of a refusal itself, and of a lost connection everyone does.
        if (outcome.is_ok() || !waited_for) && end.is_ok() {
            let _ = owner.send(answer).await;
        }
    }
    if let Some(done) = done {
        let _ = done.send(outcome);
    }
    end
}

async fn receive(proxy: &Connection) -> Result<Vec<u8>, String> {
    match tokio::time::timeout(STEP_DEADLINE, proxy.recv(PACKET_BYTES_MAX)).await {
        Ok(Ok(Some(packet))) if packet.descriptors.is_empty() => Ok(packet.bytes),
        Ok(Ok(Some(_))) => Err("it sent a descriptor".into()),
        Ok(Ok(None)) => Err("it closed the connection".into()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("it did not answer within {} s", STEP_DEADLINE.as_secs())),
    }
}

/// The outcome in an acknowledgement. An empty error means done.
fn acknowledgement(bytes: &[u8]) -> Result<Outcome, String> {
    let response = WorkloadResponse::decode(bytes).map_err(|e| format!("not an acknowledgement: {e}"))?;
    match response.payload {
        Some(workload_response::Payload::Ack(ack)) if ack.error.is_empty() => Ok(Ok(())),
        Some(workload_response::Payload::Ack(ack)) => Ok(Err(ack.error)),
        None => Err("its answer is not an acknowledgement".into()),
    }
}

fn encode(request: &Request, pod: Option<&super::Handed>) -> WorkloadRequest {
    let payload = match request {
        Request::Add { uid, .. } => Payload::Add(AddWorkload {
            uid: uid.clone(),
            workload_info: pod.map(|pod| WorkloadInfo {
                name: pod.name.clone(),
                namespace: pod.namespace.clone(),
                service_account: pod.service_account.clone(),
            }),
        }),
        Request::Keep { uid } => Payload::Keep(KeepWorkload { uid: uid.clone() }),
        Request::Delete { uid } => Payload::Del(DelWorkload { uid: uid.clone() }),
        Request::SnapshotSent => Payload::SnapshotSent(SnapshotSent {}),
    };
    WorkloadRequest { payload: Some(payload) }
}
