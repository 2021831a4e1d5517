//! What verified blocks contain: a function of where they are, how often they were written, and the seed.

use units::Rng;

/// First bytes of a block that is only to be told apart from others.
pub fn stamp(block: &mut [u8], offset: u64, number: u64) {
    let words = [offset, number];
    for (place, word) in block.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

/// The contents of `block` at byte `offset` after it was written `version` times.
pub fn fill(block: &mut [u8], seed: u64, offset: u64, version: u32) {
    let mut words = words(seed, offset, version);
    block.chunks_exact_mut(8).for_each(|place| place.copy_from_slice(&words.next_u64().to_le_bytes()));
}

/// Is `block` what [`fill`] writes?
///
/// # Errors
/// The first byte that is not; the block's length if it is too short to hold a word.
pub fn check(block: &[u8], seed: u64, offset: u64, version: u32) -> Result<(), usize> {
    if block.len() < 8 {
        return Err(block.len());
    }
    let mut words = words(seed, offset, version);
    for (i, place) in block.chunks_exact(8).enumerate() {
        let want = words.next_u64().to_le_bytes();
        if let Some(at) = place.iter().zip(want).position(|(have, want)| *have != want) {
            return Err(i * 8 + at);
        }
    }
    Ok(())
}

/// Words that depend on everything, so that a block in the wrong place, of an earlier write, or with its sectors
/// exchanged is found.
fn words(seed: u64, offset: u64, version: u32) -> Rng {
    Rng::new(seed.rotate_left(17) ^ offset.rotate_left(7) ^ u64::from(version) << 40)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_what_was_written_and_nothing_else() {
        let mut block = [0; 4096];
        fill(&mut block, 7, 8192, 3);
        assert_eq!(check(&block, 7, 8192, 3), Ok(()));
        for (seed, offset, version) in [(8, 8192, 3), (7, 4096, 3), (7, 8192, 2)] {
            assert!(check(&block, seed, offset, version).is_err());
        }
        let sectors = [&block[512..1024], &block[..512], &block[1024..]].concat();
        assert!(check(&sectors, 7, 8192, 3).is_err(), "exchanged sectors");
        block[4000] ^= 1;
        assert_eq!(check(&block, 7, 8192, 3), Err(4000));
        assert_eq!(check(&[], 7, 8192, 3), Err(0));
    }
}
