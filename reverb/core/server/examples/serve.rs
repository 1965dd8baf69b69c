// SPDX-License-Identifier: Apache-2.0
//! A server with a few tables, for trying out clients in any language: `cargo run -p reverb-server
//! --example serve -- 8000`.

use std::error::Error;

use reverb_data::{RateLimiterConfig, SelectorConfig, TableConfig};
use reverb_engine::Table;
use reverb_server::{Server, ServerOptions};
use tokio::runtime::Runtime;

fn main() -> Result<(), Box<dyn Error>> {
    let port = std::env::args().nth(1).map_or(Ok(0), |text| text.parse())?;
    let runtime = Runtime::new()?;
    let tables = vec![
        Table::new(table("fifo", SelectorConfig::Fifo, 0, f64::MAX))?,
        Table::new(table("uniform", SelectorConfig::Uniform, 0, f64::MAX))?,
        Table::new(table("prioritized", SelectorConfig::prioritized(0.8), 0, f64::MAX))?,
        Table::new(table("queue", SelectorConfig::Fifo, 1, 100.0))?,
    ];
    let options = ServerOptions { port, ..ServerOptions::default() };
    let server = Server::start(tables, &options, runtime.handle())?;
    println!("{}", server.port());
    runtime.block_on(server.wait());
    Ok(())
}

fn table(
    name: &str,
    sampler: SelectorConfig,
    max_times_sampled: i32,
    max_diff: f64,
) -> TableConfig {
    TableConfig {
        sampler,
        max_times_sampled,
        rate_limiter: RateLimiterConfig {
            samples_per_insert: 1.0,
            min_size_to_sample: 1,
            min_diff: if max_times_sampled == 1 { 0.0 } else { f64::MIN },
            max_diff,
        },
        ..TableConfig::fifo(name, if max_times_sampled == 1 { 100 } else { max_size() })
    }
}

/// `MAX_SIZE` bounds the tables that are not queues.
fn max_size() -> i64 {
    std::env::var("MAX_SIZE").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000_000)
}
