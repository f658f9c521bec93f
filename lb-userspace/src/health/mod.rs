//! Who asks whether this node is well: `/healthz` and `/livez`, and the `healthCheckNodePort` of Services.
//!
//! | module | idea |
//! |---|---|
//! | [`status`] | what there is to say of the agent |
//! | [`checks`] | one listener for each Service that has a port for it |
//! | `answers` | what is said, as kube-proxy says it |
//! | `listen` | sockets, of one family where there is one for each |

mod answers;
pub mod checks;
mod listen;
pub mod server;
pub mod status;

pub use checks::Checks;
pub use status::Health;
