// SPDX-License-Identifier: Apache-2.0
//! The least that a call to another process costs on this machine: echoes of one message.
//!
//! ```text
//! round-trip-floor serve                    prints "PORT PORT", of bare TCP and of HTTP/2
//! round-trip-floor call tcp PORT BYTES N    prints N times, in nanoseconds
//! round-trip-floor call h2 PORT BYTES N
//! ```
//!
//! HTTP/2 has the frames of a unary call of gRPC: headers and data there, headers, data and
//! trailers back. Each end has one thread, which does nothing else.

use std::error::Error;
use std::io::{self, BufWriter, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let times = match arguments[..] {
        ["serve"] => return serve(),
        ["call", "tcp", port, bytes, calls] => {
            call_tcp(port.parse()?, bytes.parse()?, calls.parse()?)?
        }
        ["call", "h2", port, bytes, calls] => {
            runtime()?.block_on(call_h2(port.parse()?, bytes.parse()?, calls.parse()?))?
        }
        _ => return Err("usage: round-trip-floor serve | call tcp|h2 PORT BYTES CALLS".into()),
    };
    let mut output = BufWriter::new(io::stdout().lock());
    for time in times {
        writeln!(output, "{}", time.as_nanos())?;
    }
    Ok(output.flush()?)
}

/// Serves both protocols until the input ends.
fn serve() -> Result<()> {
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let h2 = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{} {}", tcp.local_addr()?.port(), h2.local_addr()?.port());
    thread::spawn(move || {
        for stream in tcp.incoming().flatten() {
            // The end of a connection ends its echo.
            thread::spawn(move || echo_tcp(stream));
        }
    });
    h2.set_nonblocking(true)?;
    thread::spawn(move || runtime()?.block_on(serve_h2(h2)));
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn echo_tcp(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..length])?;
    }
}

fn call_tcp(port: u16, bytes: usize, calls: usize) -> Result<Vec<Duration>> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    let request = vec![1; bytes];
    let mut answer = vec![0; bytes];
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let began = Instant::now();
        stream.write_all(&request)?;
        stream.read_exact(&mut answer)?;
        times.push(began.elapsed());
    }
    Ok(times)
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_io().build()?)
}

async fn serve_h2(listener: TcpListener) -> Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            let mut connection = h2::server::handshake(stream).await?;
            while let Some(call) = connection.accept().await {
                let (request, responder) = call?;
                tokio::spawn(answer(request.into_body(), responder));
            }
            Result::Ok(())
        });
    }
}

async fn answer(
    request: h2::RecvStream,
    mut responder: h2::server::SendResponse<Bytes>,
) -> Result<()> {
    let message = read(request).await?;
    let head = Response::builder().header("content-type", "application/grpc").body(())?;
    let mut stream = responder.send_response(head, false)?;
    stream.send_data(message, false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    stream.send_trailers(trailers)?;
    Ok(())
}

async fn call_h2(port: u16, bytes: usize, calls: usize) -> Result<Vec<Duration>> {
    let stream = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.set_nodelay(true)?;
    let (mut client, connection) = h2::client::handshake(stream).await?;
    tokio::spawn(connection);
    let message = Bytes::from(vec![1; bytes]);
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let began = Instant::now();
        let head = Request::post("http://localhost/deepmind.reverb.ReverbService/Echo")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        client = client.ready().await?;
        let (response, mut stream) = client.send_request(head, false)?;
        stream.send_data(message.clone(), true)?;
        let mut body = response.await?.into_body();
        let mut length = 0;
        while let Some(data) = body.data().await {
            let data = data?;
            body.flow_control().release_capacity(data.len())?;
            length += data.len();
        }
        body.trailers().await?;
        times.push(began.elapsed());
        if length != bytes {
            return Err(format!("{length} bytes came back instead of {bytes}").into());
        }
    }
    Ok(times)
}

/// The data of a stream, which it gives back to the window.
async fn read(mut body: h2::RecvStream) -> Result<Bytes> {
    let mut message = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        message.extend_from_slice(&data);
    }
    Ok(message.freeze())
}
