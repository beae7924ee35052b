pub mod map; pub mod format;
