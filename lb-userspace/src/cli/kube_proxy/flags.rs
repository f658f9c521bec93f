//! Every flag that kube-proxy has, so that its command line may stay as it is: which of them were given, and those that
//! have no effect here.

use clap::builder::ArgAction;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};

/// What becomes of a flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// It is done, unless there is a file.
    Done,
    /// It is done, with a file too (CL-1).
    Always,
    /// It has no effect, and takes a value.
    NoEffect,
    /// It has no effect, and is true unless it has a value.
    NoEffectSwitch,
    /// It is about kube-proxy's log: no effect, with or without a file.
    Log,
    /// The same, true unless it has a value.
    LogSwitch,
}

use Role::{Always, Done, Log, LogSwitch, NoEffect, NoEffectSwitch};

/// kube-proxy's flags.
pub(super) const FLAGS: [(&str, Role); 64] = [
    ("bind-address", Done),
    ("bind-address-hard-fail", Done),
    ("cleanup", Always),
    ("cluster-cidr", Done),
    ("config", Always),
    ("config-sync-period", NoEffect),
    ("conntrack-max-per-core", NoEffect),
    ("conntrack-min", NoEffect),
    ("conntrack-tcp-be-liberal", NoEffectSwitch),
    ("conntrack-tcp-timeout-close-wait", NoEffect),
    ("conntrack-tcp-timeout-established", NoEffect),
    ("conntrack-udp-timeout", NoEffect),
    ("conntrack-udp-timeout-stream", NoEffect),
    ("detect-local-mode", Done),
    ("feature-gates", Done),
    ("healthz-bind-address", Done),
    ("healthz-port", Done),
    ("hostname-override", Always),
    ("init-only", Always),
    ("iptables-localhost-nodeports", Done),
    ("iptables-masquerade-bit", NoEffect),
    ("iptables-min-sync-period", NoEffect),
    ("iptables-sync-period", NoEffect),
    ("ipvs-exclude-cidrs", NoEffect),
    ("ipvs-min-sync-period", NoEffect),
    ("ipvs-scheduler", Done),
    ("ipvs-strict-arp", NoEffectSwitch),
    ("ipvs-sync-period", NoEffect),
    ("ipvs-tcp-timeout", Done),
    ("ipvs-tcpfin-timeout", Done),
    ("ipvs-udp-timeout", Done),
    ("kube-api-burst", Done),
    ("kube-api-content-type", NoEffect),
    ("kube-api-qps", Done),
    ("kubeconfig", Done),
    ("log-flush-frequency", Log),
    ("log-json-info-buffer-size", Log),
    ("log-json-split-stream", LogSwitch),
    ("log-text-info-buffer-size", Log),
    ("log-text-split-stream", LogSwitch),
    ("logging-format", Log),
    ("masquerade-all", Done),
    ("master", Always),
    ("metrics-bind-address", Done),
    ("metrics-port", Done),
    ("nodeport-addresses", Done),
    ("oom-score-adj", Done),
    ("pod-bridge-interface", Done),
    ("pod-interface-name-prefix", Done),
    ("profiling", NoEffectSwitch),
    ("proxy-mode", Done),
    ("show-hidden-metrics-for-version", NoEffect),
    ("v", Log),
    ("vmodule", Log),
    ("write-config-to", Always),
    // klog's, which older kube-proxies have.
    ("add-dir-header", LogSwitch),
    ("alsologtostderr", LogSwitch),
    ("log-backtrace-at", Log),
    ("log-dir", Log),
    ("log-file", Log),
    ("logtostderr", LogSwitch),
    ("one-output", LogSwitch),
    ("skip-headers", LogSwitch),
    ("stderrthreshold", Log),
];

/// Which of kube-proxy's flags were given. Must come before what takes their values.
#[derive(Debug)]
pub(super) struct Given(Vec<&'static (&'static str, Role)>);

impl Given {
    /// Those without effect; `by_file`: a file says what counts.
    pub(super) fn without_effect(&self, by_file: bool) -> Vec<String> {
        self.names(|role| match role {
            Always | Done => false,
            Log | LogSwitch => true,
            NoEffect | NoEffectSwitch => !by_file,
        })
    }

    /// Those that count for nothing because there is a file.
    pub(super) fn overruled(&self) -> Vec<String> {
        self.names(|role| matches!(role, Done | NoEffect | NoEffectSwitch))
    }

    fn names(&self, wanted: impl Fn(Role) -> bool) -> Vec<String> {
        let names = self.0.iter().filter(|(_, role)| wanted(*role));
        names.map(|(name, _)| if name.len() == 1 { format!("-{name}") } else { format!("--{name}") }).collect()
    }
}

/// Adds those that have no effect: the others are arguments with a field of their own.
impl Args for Given {
    fn augment_args(command: Command) -> Command {
        let arguments = FLAGS.iter().filter_map(|(name, role)| {
            let argument = Arg::new(*name).long(*name).hide(true);
            let argument = if name.len() == 1 { argument.short(name.chars().next()) } else { argument };
            match role {
                Done | Always => None,
                NoEffect | Log => Some(argument.action(ArgAction::Append).allow_hyphen_values(true)),
                NoEffectSwitch | LogSwitch => {
                    let argument = argument.num_args(0..=1).require_equals(true).default_missing_value("true");
                    Some(argument.action(ArgAction::Append))
                }
            }
        });
        command.args(arguments)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = |name: &str| {
            // Those with a field are named as it is, with underscores.
            let mut ids = matches.ids().filter(|id| id.as_str().replace('_', "-") == name);
            ids.any(|id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine))
        };
        Ok(Self(FLAGS.iter().filter(|(name, _)| given(name)).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
