//! Why IPVS refused.

use std::fmt;

use nix::errno::Errno;

use super::attributes::Command;

/// An error that the kernel answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub(super) command: Command,
    /// The error's number.
    pub errno: Errno,
}

impl Refusal {
    /// What the number says of this command (`ip_vs_ctl.c`).
    fn meaning(&self) -> &'static str {
        match (self.errno, self.command) {
            (Errno::ESRCH, _) => "there is no such virtual service",
            (Errno::EEXIST, Command::NewService) => "the virtual service exists already",
            (Errno::ENOENT, Command::NewService | Command::SetService) => "the kernel has no such scheduler",
            (Errno::EEXIST, Command::NewServer) => "the real server exists already",
            (Errno::ENOENT, Command::SetServer | Command::DeleteServer) => "the service has no such real server",
            (Errno::ERANGE, Command::NewServer | Command::SetServer) => {
                "the weight is negative, or the lower threshold is above the upper one"
            }
            (Errno::EPROTONOSUPPORT, _) => "IPVS has no services of this protocol",
            (Errno::EPERM, _) => "this takes CAP_NET_ADMIN in the network namespace's user namespace",
            (errno, _) => errno.desc(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ({:?}, {:?})", self.meaning(), self.command, self.errno)
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_means_what_its_command_makes_of_it() {
        let said = |command, errno| Refusal { command, errno }.to_string();
        assert_eq!(said(Command::NewService, Errno::ENOENT), "the kernel has no such scheduler (NewService, ENOENT)");
        assert_eq!(
            said(Command::DeleteServer, Errno::ENOENT),
            "the service has no such real server (DeleteServer, ENOENT)"
        );
        assert_eq!(said(Command::Flush, Errno::EBUSY), "Device or resource busy (Flush, EBUSY)");
    }
}
