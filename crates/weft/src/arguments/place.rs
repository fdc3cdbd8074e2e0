//! What may be said of every command that speaks to a node: where it is.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches};
use std::path::PathBuf;

/// Where the node is. What was said of the API counts before the directory, but never the environment before the command line.
#[derive(Debug, Clone)]
pub struct Place {
    pub dir: PathBuf,
    pub api: Option<String>,
}

#[derive(Args)]
struct PlaceOptions {
    /// Directory of the node
    #[arg(long, env = "WEFT_DIR", default_value = "./weft-data", value_name = "DIR")]
    dir: PathBuf,
    /// Address of the node's API, like 127.0.0.1:7070, instead of looking it up in the directory
    #[arg(long, env = "WEFT_API", value_name = "ADDR")]
    api: Option<String>,
}

impl FromArgMatches for Place {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_said = |option| matches.value_source(option) == Some(ValueSource::CommandLine);
        let PlaceOptions { dir, api } = PlaceOptions::from_arg_matches(matches)?;
        // Who names a directory means the node that runs there, whatever the environment says of another one.
        let api = if is_said("dir") && !is_said("api") { None } else { api };
        Ok(Self { dir, api })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Place {
    fn augment_args(command: clap::Command) -> clap::Command {
        PlaceOptions::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        PlaceOptions::augment_args_for_update(command)
    }
}
