//! Tests of several gateways on one MongoDB database: real MongoDB servers, real processes, injected faults.

mod gateways;
mod load;
#[allow(dead_code)]
#[path = "../../../prombus-mongo/tests/it/servers.rs"]
mod servers;
mod stopped_leader;
mod survival;
mod take_part;
