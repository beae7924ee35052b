//! What can be said to `ashlar ledger`.

use clap::{Args, Subcommand};

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct LedgerArguments {
    #[command(flatten)]
    pub list: List,
    #[command(subcommand)]
    pub command: Option<LedgerCommand>,
}

#[derive(Args)]
pub struct List {
    /// Show only the last N records.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
}

#[derive(Subcommand)]
pub enum LedgerCommand {
    /// One record with its inputs.
    Show {
        /// Its id, or the beginning of it.
        id: String,
    },
    /// Predictions beside what was measured after them, and how each model fared.
    Score,
    /// Write down what was measured, for `ledger score`.
    Measure {
        /// What it is about: the subject of the prediction, or the id of one, which then says quantity and unit too.
        subject: String,
        /// What was measured.
        #[arg(long, allow_negative_numbers = true)]
        value: f64,
        /// Which number, as the prediction calls it.
        #[arg(long, requires = "unit")]
        quantity: Option<String>,
        /// Its unit, as in the prediction.
        #[arg(long, requires = "quantity")]
        unit: Option<String>,
        /// How it was measured.
        #[arg(long, default_value = "")]
        how: String,
        /// An emulator or a simulation gave it.
        #[arg(long)]
        emulated: bool,
    },
}
