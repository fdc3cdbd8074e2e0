//! The one binary: runs a node, speaks to one, looks at drives offline, and measures.
//! Promises: exit code 0 done, 1 failed, 2 bad input (trying again the same way fails the same way); every error is one
//! line on stderr: what, why, what to do. Leaves the work to the crates `node` and `lab`.

mod arguments;
mod cache;
mod check;
mod client;
mod cluster;
mod config_file;
mod container;
mod drive;
mod duration;
mod emptying;
mod group;
mod inspect;
mod lab;
mod latency;
mod node;
mod output;
mod pg;
mod size;
mod snapshot;
mod stats;
mod status;
mod top;
mod transfer;
mod trouble;
mod up;
mod usage;
mod vdisk;
mod vdisk_stats;

use arguments::{Arguments, Command};
use clap::{CommandFactory, Parser};
use std::process::ExitCode;
use trouble::Trouble;

/// Every request takes and gives back many small pieces of memory; the C library's own way costs a node several percent more.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return explain_usage(&error),
    };
    match run(arguments) {
        Ok(code) => code,
        Err(trouble) => {
            output::complain(trouble.line());
            trouble.exit_code()
        }
    }
}

fn run(arguments: Arguments) -> Result<ExitCode, Trouble> {
    let json = arguments.json;
    match arguments.command {
        Command::Up(up) => up::run(up)?,
        Command::Down(place) => status::down(&place, json)?,
        Command::Status(place) => status::status(&place, json)?,
        Command::Vdisk(command) => vdisk::run(command, json)?,
        Command::Container(command) => container::run(command, json)?,
        Command::Snapshot(command) => snapshot::run(command, json)?,
        Command::Clone(arguments) => snapshot::clone(&arguments, json)?,
        Command::Group(command) => group::run(command, json)?,
        Command::Import(arguments) => transfer::import(&arguments, json)?,
        Command::Export(arguments) => transfer::export(&arguments, json)?,
        Command::Cluster(command) => cluster::run(command, json)?,
        Command::Node(command) => node::run(command, json)?,
        Command::Drive(command) => drive::run(command, json)?,
        Command::Pg(command) => pg::run(command, json)?,
        Command::Cache(command) => cache::run(command, json)?,
        Command::Stats(stats) => stats::run(&stats, json)?,
        Command::Top(arguments) => top::run(&arguments, json)?,
        Command::Latency(arguments) => latency::run(&arguments, json)?,
        Command::Lab(command) => return lab::run(command, json),
        Command::Check(mut arguments) => {
            arguments.json |= json;
            return check::run(arguments).map_err(|error| Trouble::from_check(&error));
        }
        Command::Inspect(mut arguments) => {
            arguments.json |= json;
            return inspect::run(arguments).map_err(|error| Trouble::from_inspect(&error));
        }
        Command::Sim(arguments) => return Ok(arguments.run()),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "weft", &mut script);
            output::write(&script);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Help and versions go to stdout. A mistake becomes one line, because that is what scripts and people read.
fn explain_usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            output::write(error.render().to_string().as_bytes());
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            output::complain("a command is missing; `weft --help` lists them with examples");
            ExitCode::from(2)
        }
        _ => {
            let text = error.render().to_string();
            // The message is everything before the first empty line: usage and hints follow it.
            let message: Vec<&str> =
                text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
            let message = message.join(" ");
            let message = message.strip_prefix("error: ").unwrap_or(&message);
            output::complain(format_args!("{message}; add --help to the command to see what it takes"));
            ExitCode::from(2)
        }
    }
}
