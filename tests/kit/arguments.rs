//! How the programs of the tests begin: arguments, help, and what is said of wrong ones.

use std::env::{Args, args};
use std::iter::Skip;
use std::process::ExitCode;

use anyhow::Result;

/// Reads the arguments of this process with `read`, which finds none in a request for help. Prints the usage for that, and
/// for a wrong argument besides the error; `Err` is what the process then ends with.
pub fn parse<T>(read: impl FnOnce(Skip<Args>) -> Result<Option<T>>, usage: &str) -> Result<T, ExitCode> {
    match read(args().skip(1)) {
        Ok(Some(options)) => Ok(options),
        Ok(None) => {
            print!("{usage}");
            Err(ExitCode::SUCCESS)
        }
        Err(error) => {
            eprint!("{error:#}\n\n{usage}");
            Err(ExitCode::from(2))
        }
    }
}
