#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| urbd_hostile::peer::primary(bytes));
