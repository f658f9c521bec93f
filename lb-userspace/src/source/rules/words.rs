//! The words of a line as `ipvsadm` takes them: options, short or long, with or without a value.

use crate::model::problem::shown;

/// What is wrong with a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Wrong {
    /// The option, as in `-w`; empty when the line is meant.
    pub(super) field: &'static str,
    /// Its value as it was written; empty if there is none.
    pub(super) value: String,
    /// What is allowed, or what to do.
    pub(super) message: String,
}

impl Wrong {
    pub(super) fn line(message: impl Into<String>) -> Self {
        Self { field: "", value: String::new(), message: message.into() }
    }

    pub(super) fn option(option: Opt, message: impl Into<String>) -> Self {
        Self { field: option.name(), value: String::new(), message: message.into() }
    }

    pub(super) fn value(option: Opt, value: &str, message: impl Into<String>) -> Self {
        Self { value: shown(value), ..Self::option(option, message) }
    }
}

/// Whether an option has a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    Never,
    Always,
    /// If the next word begins with no `-`.
    Perhaps,
}

macro_rules! options {
    ($($option:ident $name:literal $short:literal $long:literal $value:ident,)*) => {
        /// An option of `ipvsadm`.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub(super) enum Opt { $($option,)* }

        impl Opt {
            const ALL: &'static [Self] = &[$(Self::$option,)*];

            /// As messages name it.
            pub(super) const fn name(self) -> &'static str {
                match self { $(Self::$option => $name,)* }
            }

            /// The letters that mean it.
            const fn short(self) -> &'static str {
                match self { $(Self::$option => $short,)* }
            }

            const fn long(self) -> &'static str {
                match self { $(Self::$option => $long,)* }
            }

            const fn takes(self) -> Value {
                match self { $(Self::$option => Value::$value,)* }
            }
        }
    };
}

options! {
    AddService "-A" "A" "add-service" Never,
    EditService "-E" "E" "edit-service" Never,
    DeleteService "-D" "D" "delete-service" Never,
    Clear "-C" "C" "clear" Never,
    AddServer "-a" "a" "add-server" Never,
    EditServer "-e" "e" "edit-server" Never,
    DeleteServer "-d" "d" "delete-server" Never,
    List "-L" "Ll" "list" Never,
    Zero "-Z" "Z" "zero" Never,
    Restore "-R" "R" "restore" Never,
    Save "-S" "S" "save" Never,
    Set "--set" "" "set" Never,
    StartDaemon "--start-daemon" "" "start-daemon" Never,
    StopDaemon "--stop-daemon" "" "stop-daemon" Never,
    Help "-h" "h" "help" Never,
    Version "-v" "v" "version" Never,
    Tcp "-t" "t" "tcp-service" Always,
    Udp "-u" "u" "udp-service" Always,
    Sctp "--sctp-service" "" "sctp-service" Always,
    Mark "-f" "f" "fwmark-service" Always,
    Ipv6 "-6" "6" "ipv6" Never,
    Scheduler "-s" "s" "scheduler" Always,
    Persistent "-p" "p" "persistent" Perhaps,
    Netmask "-M" "M" "netmask" Always,
    Engine "--pe" "" "pe" Always,
    Flags "-b" "b" "sched-flags" Always,
    OnePacket "-o" "o" "ops" Never,
    Server "-r" "r" "real-server" Always,
    Route "-g" "g" "gatewaying" Never,
    Tunnel "-i" "i" "ipip" Never,
    Masq "-m" "m" "masquerading" Never,
    Weight "-w" "w" "weight" Always,
    Upper "-x" "x" "u-threshold" Always,
    Lower "-y" "y" "l-threshold" Always,
    TunnelType "--tun-type" "" "tun-type" Always,
    TunnelPort "--tun-port" "" "tun-port" Always,
    TunnelNoChecksum "--tun-nocsum" "" "tun-nocsum" Never,
    TunnelChecksum "--tun-csum" "" "tun-csum" Never,
    TunnelRemoteChecksum "--tun-remcsum" "" "tun-remcsum" Never,
    Numeric "-n" "n" "numeric" Never,
}

/// An option as given, with its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Given<'a> {
    pub(super) option: Opt,
    pub(super) value: Option<&'a str>,
}

/// The words of a line: none for a blank line or a comment. What follows a word that begins with `#` is a comment. The
/// program's name may come first, as `ipvsadm -R` has it.
pub(super) fn words(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split_ascii_whitespace().take_while(|word| !word.starts_with('#'));
    words.enumerate().filter(|(index, word)| *index > 0 || !is_program(word)).map(|(_, word)| word)
}

fn is_program(word: &str) -> bool {
    word.rsplit('/').next() == Some("ipvsadm")
}

/// The options that the words are.
pub(super) fn options<'a>(words: impl Iterator<Item = &'a str>) -> Result<Vec<Given<'a>>, Wrong> {
    let mut given = Vec::new();
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        let mut next = |option: Opt, attached: Option<&'a str>| {
            let value = match (option.takes(), attached) {
                (Value::Never, None) => None,
                (Value::Never, Some(value)) => return Err(Wrong::value(option, value, "takes no value")),
                (_, Some(value)) => Some(value),
                (Value::Always, None) => match words.next() {
                    Some(word) => Some(word),
                    None => return Err(Wrong::option(option, "needs a value, and the line ends here")),
                },
                (Value::Perhaps, None) => words.next_if(|word| !word.starts_with('-')),
            };
            Ok(Given { option, value })
        };
        if let Some(long) = word.strip_prefix("--") {
            let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let option = Opt::ALL.iter().copied().find(|option| option.long() == name).ok_or_else(|| unknown(word))?;
            given.push(next(option, value)?);
        } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            // Several letters in one word: the first that has a value takes what is left of the word.
            for (index, letter) in letters.char_indices() {
                let option = Opt::ALL.iter().copied().find(|option| option.short().contains(letter));
                let option = option.ok_or_else(|| unknown(word))?;
                let rest = &letters[index + letter.len_utf8()..];
                let attached = Some(rest).filter(|rest| option.takes() != Value::Never && !rest.is_empty());
                given.push(next(option, attached)?);
                if option.takes() != Value::Never {
                    break;
                }
            }
        } else {
            let message =
                format!("{} is no option: options begin with `-`, and none before it wants a value", shown(word));
            return Err(Wrong::line(message));
        }
    }
    Ok(given)
}

fn unknown(word: &str) -> Wrong {
    Wrong::line(format!("{} is no option of ipvsadm: see `man ipvsadm`", shown(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Vec<(Opt, Option<&str>)>, String> {
        let given = options(words(line)).map_err(|wrong| wrong.message)?;
        Ok(given.into_iter().map(|given| (given.option, given.value)).collect())
    }

    #[test]
    fn short_long_attached_and_joined_options_are_the_same() {
        let expected = vec![(Opt::AddService, None), (Opt::Tcp, Some("10.0.0.1:80")), (Opt::Scheduler, Some("rr"))];
        for line in [
            "-A -t 10.0.0.1:80 -s rr",
            "ipvsadm -A -t 10.0.0.1:80 -s rr",
            "/sbin/ipvsadm  -At 10.0.0.1:80\t-srr # the first",
            "--add-service --tcp-service 10.0.0.1:80 --scheduler=rr\r",
        ] {
            assert_eq!(read(line).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn persistence_may_have_a_value() {
        for (line, value) in [
            ("-p", None),
            ("-p -m", None),
            ("-p 5", Some("5")),
            ("-p5", Some("5")),
            ("--persistent=5", Some("5")),
            ("--persistent 5", Some("5")),
        ] {
            assert_eq!(read(line).unwrap()[0], (Opt::Persistent, value), "{line}");
        }
    }

    #[test]
    fn blank_lines_and_comments_have_no_words() {
        for line in ["", " \t", "# -A -t 10.0.0.1:80", "#-A", "ipvsadm", "ipvsadm # nothing"] {
            assert_eq!(words(line).count(), 0, "{line}");
        }
    }

    #[test]
    fn what_is_no_option_is_named() {
        for (line, expected) in [
            ("-A -t", "needs a value"),
            ("-A web", "\"web\" is no option"),
            ("-A -", "\"-\" is no option"),
            ("-A --", "\"--\" is no option"),
            ("-Aq", "\"-Aq\" is no option"),
            ("-A\u{e9}", "is no option"),
            ("--add-service=1", "takes no value"),
            ("--weigth 1", "\"--weigth\" is no option"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
