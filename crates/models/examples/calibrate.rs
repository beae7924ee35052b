//! Prints the calibration of every preset, or of the named ones, as a table for the documentation.

fn main() -> Result<(), ashlar_models::SpecError> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    println!("| preset | table | row | unit | published | model | error | tolerance |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for file in ashlar_models::presets() {
        if !wanted.is_empty() && !wanted.contains(&file.name) {
            continue;
        }
        for row in ashlar_models::calibrate(&file)? {
            println!(
                "| `{}` | {} | {} | {} | {:.4} | {:.4} | {:+.2} % | {:.2} %{} |",
                file.name,
                row.table,
                row.row,
                row.unit,
                row.expected,
                row.got,
                row.error() * 100.0,
                row.tolerance * 100.0,
                if row.holds() { "" } else { ", missed" }
            );
        }
    }
    Ok(())
}
