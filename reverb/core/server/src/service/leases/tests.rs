// SPDX-License-Identifier: Apache-2.0
//! When the leases of a client end. A take that waits is seen to end with them.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use reverb_base::ErrorKind;
use reverb_data::column_names::ColumnPath;
use reverb_data::rollouts::{LeaseId, OnStale, RolloutSettings};
use reverb_data::{DType, Signature, TableConfig, TableSignature, TensorSpec};
use reverb_engine::{Table, TakeRequest, Takes};
use reverb_rpc::target::Loopback;
use reverb_wire::calls::Call as _;
use reverb_wire::generated::Lease;
use reverb_wire::generated::reverb::TakeRequest as TakeMessage;

use super::*;
use crate::service::local::local_shard;
use crate::service::server::{Server, ServerOptions};

const GRACE: Duration = Duration::from_secs(10);
const HOLDER: u64 = 7;

fn server() -> Server {
    let spec =
        |name: &str| TensorSpec::new(ColumnPath::from_label(name), "", DType::Int64, Some(vec![]));
    let settings = RolloutSettings {
        num_columns: 2,
        item_columns: [0].into(),
        num_rollouts: 1,
        min_rollouts: 1,
        ahead: None,
        items_per_version: None,
        max_staleness: None,
        on_stale: OnStale::Keep,
        open_timeout: None,
        max_attempts: 5,
    };
    let flat = Signature(vec![spec("prompt"), spec("tokens")]);
    let table = Table::new(TableConfig {
        signature: Some(TableSignature { flat, encoded: Bytes::new() }),
        rollouts: Some(Arc::new(settings)),
        ..TableConfig::fifo("train", 100)
    });
    let options = ServerOptions {
        host: Some("127.0.0.1".to_owned()),
        lease_grace: GRACE,
        ..ServerOptions::default()
    };
    Server::start_with(vec![table.unwrap()], &options, None, &Handle::current()).unwrap()
}

fn hold(server: &Server) -> LeaseHold {
    server.service.hold_leases(HoldLeasesRequest { holder: HOLDER }, "client".into()).unwrap()
}

/// A take of the client, which waits until its leases end.
fn take(server: &Server) -> impl Future<Output = Result<Vec<reverb_engine::Taken>>> {
    let lease = LeaseId { holder: HOLDER, number: 1 };
    server.tables()[0].take(TakeRequest { takes: Takes::Open, num: 1, lease }, None, false)
}

fn is_waiting(take: &mut Pin<&mut impl Future>) -> bool {
    matches!(take.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending)
}

#[tokio::test(start_paused = true)]
async fn the_end_of_one_of_two_streams_changes_nothing() {
    let server = server();
    let streams = [hold(&server), hold(&server)];
    let mut take = pin!(take(&server));
    assert!(is_waiting(&mut take));
    let [first, second] = streams;
    first.release();
    assert!(is_waiting(&mut take));
    server.service.holders.check(HOLDER).unwrap();
    second.release();
    assert!(!is_waiting(&mut take));
    assert_eq!(
        server.service.holders.check(HOLDER).unwrap_err().kind(),
        ErrorKind::FailedPrecondition
    );
}

#[tokio::test(start_paused = true)]
async fn an_earlier_loss_does_not_end_what_is_lost_later() {
    let server = server();
    let mut take = pin!(take(&server));
    assert!(is_waiting(&mut take));
    drop(hold(&server));
    tokio::time::sleep(GRACE / 2).await;
    drop(hold(&server));
    // Its grace has passed for the first loss, and not for the second.
    tokio::time::sleep(GRACE * 3 / 4).await;
    assert!(is_waiting(&mut take));
    tokio::time::sleep(GRACE / 2).await;
    assert!(!is_waiting(&mut take));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_back_keeps_its_leases() {
    let server = server();
    let mut take = pin!(take(&server));
    assert!(is_waiting(&mut take));
    drop(hold(&server));
    tokio::time::sleep(GRACE / 2).await;
    let _back = hold(&server);
    tokio::time::sleep(2 * GRACE).await;
    assert!(is_waiting(&mut take));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_without_a_stream_is_refused() {
    let server = server();
    let transport = local_shard(Loopback::localhost(server.port())).unwrap();
    let lease = Some(Lease { holder: HOLDER, number: 1 });
    let request = TakeMessage {
        table: "train".into(),
        num_items: 1,
        lease,
        timeout_ms: Some(0),
        ..TakeMessage::default()
    };
    let take = || transport.small_call(TakeMessage::CALL, prost_bytes(&request));
    assert_eq!(take().await.unwrap_err().kind(), ErrorKind::FailedPrecondition);
    let _stream = hold(&server);
    assert_eq!(take().await.unwrap_err().kind(), ErrorKind::RateLimiterTimeout);
}

fn prost_bytes(request: &TakeMessage) -> Bytes {
    prost::Message::encode_to_vec(request).into()
}
