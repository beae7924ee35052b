//! Prints the calibration of every preset, or of the named ones.

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for file in ashlar_models::presets() {
        if !wanted.is_empty() && !wanted.contains(&file.name) {
            continue;
        }
        println!("{}: {}", file.name, file.what);
        match ashlar_models::calibrate(&file) {
            Err(error) => println!("    {error}"),
            Ok(rows) => {
                for row in rows {
                    let mark = if row.holds() { ' ' } else { '!' };
                    println!(
                        "  {mark} {:<40} {:<48} {:>10.3} {:>10.3} {:>4} {:>+7.2} %",
                        row.table,
                        row.row,
                        row.expected,
                        row.got,
                        row.unit,
                        row.error() * 100.0
                    );
                }
            }
        }
    }
}
