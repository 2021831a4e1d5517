//! Numbers that begin again at 0 when they have come to their end: of epochs, packets, writes.

/// Is `a` behind `b`, of two that are not far from each other?
#[must_use]
pub const fn is_after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

#[cfg(test)]
mod tests {
    use super::is_after;

    #[test]
    fn behind_the_last_number_comes_the_first() {
        for start in [0, 1, u32::MAX / 2, u32::MAX / 2 + 1, u32::MAX - 1, u32::MAX] {
            for steps in [1, 2, 1000, u32::MAX / 2] {
                let later = start.wrapping_add(steps);
                assert!(is_after(later, start) && !is_after(start, later), "{start} {steps}");
            }
            assert!(!is_after(start, start));
        }
    }
}
