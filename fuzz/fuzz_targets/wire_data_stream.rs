#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| urbd_hostile::readers::wire_data_stream(bytes));
