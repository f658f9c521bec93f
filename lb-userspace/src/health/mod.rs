//! Who asks whether this node is well: `/healthz`, `/livez` and `/readyz`, and the `healthCheckNodePort` of Services.
//!
//! | module | idea |
//! |---|---|
//! | [`status`] | what there is to say of the agent |
//! | [`checks`] | one listener for each Service that has a port for it |
//! | `answers` | what is said, as kube-proxy says it |
//! | [`server`] | where it is said of the node |

mod answers;
pub mod checks;
pub mod server;
pub mod status;

pub use checks::{Checks, Unheard};
pub use status::Health;
