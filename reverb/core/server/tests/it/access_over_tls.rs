// SPDX-License-Identifier: Apache-2.0
//! Tokens and certificates of clients over TLS.

use std::io::Write;
use std::path::PathBuf;

use crate::support::callers::Callers;
use crate::support::*;
use reverb_auth::{Right, new_token};
use reverb_base::{ErrorKind, Result};
use reverb_rpc::client::{ConnectionOptions, Credentials, Environment};
use reverb_rpc::server::PortTls;
use reverb_rpc::status::Code;
use reverb_rpc::target::Target;
use reverb_server::{Server, ServerOptions};
use reverb_tls::{ClientFiles, ServerFiles, ServerTls, self_signed};
use reverb_wire::GrpcTransport;
use reverb_wire::generated::CheckpointRequest;
use reverb_wire::generated::reverb::StatusRequest;
use reverb_wire::transport::{SampleRequest, Transport};
use tokio::runtime::Handle;

/// A certificate for this machine, for both ends, in a directory that is removed at the end.
struct Certificate(PathBuf);

impl Certificate {
    fn new(name: &str) -> Self {
        let name = format!("reverb-access-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        self_signed(&directory, &["localhost".to_owned()], 1).unwrap();
        Self(directory)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A server on all addresses.
    fn serve(&self, callers: &Callers) -> Server {
        let files = ServerFiles {
            cert: self.file("tls.crt"),
            key: self.file("tls.key"),
            client_ca: Some(self.file("ca.crt")),
        };
        let tls = ServerTls::open(files).unwrap();
        let tls = Some(PortTls { tls, max_connection_age: None });
        let options = ServerOptions { host: None, tls, ..callers.options() };
        let tables = vec![table(config("a")), table(config("b"))];
        Server::start(tables, &options, &Handle::current()).unwrap()
    }

    /// A client that shows the certificate, and this token.
    fn connect(&self, server: &Server, token: Option<&str>) -> GrpcTransport {
        let tls = ClientFiles {
            ca: Some(self.file("ca.crt")),
            cert: Some(self.file("tls.crt")),
            key: Some(self.file("tls.key")),
            ..ClientFiles::default()
        };
        let token = token.map(ToOwned::to_owned);
        let credentials = Credentials { token, tls, ..Credentials::default() };
        let address = format!("grpcs://localhost:{}", server.port());
        let security =
            credentials.open(&Target::parse(&address).unwrap(), Environment::default()).unwrap();
        let options = ConnectionOptions { security, ..ConnectionOptions::default() };
        GrpcTransport::with_options(&address, options).unwrap()
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn insert(client: &GrpcTransport, table: &str) -> Result<()> {
    let mut stream = client.open_insert().await?;
    stream.sink.send(batch(table, vec![chunk(1, &[1])])).await?;
    soon(stream.confirmations.recv()).await.expect("the stream ended").map(drop)
}

async fn sample(client: &GrpcTransport, table: &str) -> Result<usize> {
    let mut stream = client.open_sample().await?;
    stream.request(&SampleRequest::new(table, 1, None))?;
    received(&mut *stream, 1).await.map(|samples| samples.len())
}

fn denied<T: std::fmt::Debug>(result: Result<T>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    error.message().to_owned()
}

#[tokio::test]
async fn a_client_may_do_what_its_token_says() {
    let certificate = Certificate::new("token");
    let mut callers = Callers::new(&[
        ("actor", &[Right::Insert], &["a"]),
        ("learner", &[Right::Sample, Right::Update], &["*"]),
    ]);
    let server = certificate.serve(&callers);
    let actor = certificate.connect(&server, Some(callers.token("actor")));
    let learner = certificate.connect(&server, Some(callers.token("learner")));
    assert_eq!(actor.server_info().await.unwrap().tables.len(), 1);
    insert(&actor, "a").await.unwrap();
    assert_eq!(sample(&learner, "a").await.unwrap(), 1);
    learner.mutate_priorities("a", &[(1, 2.0)], &[]).await.unwrap();
    let text = denied(insert(&actor, "b").await);
    assert!(text.contains("InsertStream: token actor may not insert into table b; "), "{text}");
    let text = denied(insert(&learner, "a").await);
    assert!(text.contains("InsertStream: token learner may not insert into any table; "), "{text}");
    denied(sample(&actor, "a").await);
    denied(learner.call(reset("a")).await);
    denied(learner.call(CheckpointRequest {}).await);

    // Removed tokens are unknown at the next call, and added ones are known.
    callers.write(&[("new", &[Right::Sample], &["a"])]);
    server.reload_security().unwrap();
    let error = learner.server_info().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    assert!(error.message().contains("does not know this token (rvb_"), "{error}");
    assert!(!error.message().contains(&callers.token("learner")[..12]), "{error}");
    let new = certificate.connect(&server, Some(callers.token("new")));
    assert_eq!(sample(&new, "a").await.unwrap(), 1);
}

#[tokio::test]
async fn a_certificate_stands_in_for_a_token() {
    let certificate = Certificate::new("certificate");
    let callers = Callers::new(&[("learner", &[Right::Update], &["a"])]);
    let add = |line: &str| {
        let mut file = std::fs::OpenOptions::new().append(true).open(&callers.path).unwrap();
        writeln!(file, "{line}").unwrap();
    };
    add("host  sample  b  cert:LOCALHOST");
    let server = certificate.serve(&callers);
    let names = |info: reverb_wire::transport::ServerInfo| {
        info.tables.into_iter().map(|table| table.name).collect::<Vec<_>>()
    };
    let by_certificate = certificate.connect(&server, None);
    assert_eq!(names(by_certificate.server_info().await.unwrap()), ["b"]);
    let text = denied(by_certificate.call(reset("b")).await);
    assert!(text.contains("Reset: certificate host may not administer any table"), "{text}");
    // A token wins, also a wrong one.
    let by_token = certificate.connect(&server, Some(callers.token("learner")));
    assert_eq!(names(by_token.server_info().await.unwrap()), ["a"]);
    let wrong = certificate.connect(&server, Some(&new_token().unwrap()));
    assert_eq!(wrong.server_info().await.unwrap_err().kind(), ErrorKind::Unauthenticated);
}

#[tokio::test]
async fn a_token_in_cleartext_is_not_looked_at() {
    let certificate = Certificate::new("cleartext");
    let callers = Callers::new(&[("learner", &[Right::Sample], &["*"])]);
    let server = certificate.serve(&callers);
    let raw = RawClient::connect(&server).await;
    let value = format!("Bearer {}", callers.token("learner")).parse().unwrap();
    let headers = http::HeaderMap::from_iter([(http::header::AUTHORIZATION, value)]);
    let status = raw.open_with("ServerInfo", headers).await.status().await;
    assert_eq!(status.code, Code::FailedPrecondition);
    let failures = server.status(StatusRequest::default()).traffic.unwrap().auth_failures;
    assert!(failures.iter().all(|it| it.count == 0), "{failures:?}");
}
