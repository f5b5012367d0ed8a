//! `.npz` archives that lie. Each test is named after the lie.

mod common;

use common::{npy_of, refusal, zipped};
use qkv_io::{Error, Fault, Format, ReadOptions, read_bytes};
use zip::CompressionMethod::{Deflated, Stored};

fn refused(bytes: Vec<u8>) -> Error {
    refusal(bytes, Format::Npz)
}

fn array() -> Vec<u8> {
    npy_of("<f4", "(64,)", &[1; 256])
}

/// Where the header of the archive's first central entry begins.
fn central(bytes: &[u8]) -> usize {
    bytes.windows(4).position(|four| four == b"PK\x01\x02").unwrap()
}

#[test]
fn npz_cut_at_every_length() {
    for method in [Stored, Deflated] {
        let whole = zipped(method, &[("q.npy", &array()), ("k.npy", &array())]);
        assert_eq!(read_bytes(whole.clone(), Format::Npz, &ReadOptions::new()).unwrap().arrays.len(), 2);
        for length in 0..whole.len() {
            refused(whole[..length].to_vec());
        }
    }
}

#[test]
fn npz_any_byte_changed_is_read_or_refused() {
    for method in [Stored, Deflated] {
        let whole = zipped(method, &[("q.npy", &npy_of("|b1", "(4,)", &[1; 4]))]);
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff, whole[at] ^ 1] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                // Whether it is still an archive is not the point: reading must end.
                let _ = read_bytes(bytes, Format::Npz, &ReadOptions::new());
            }
        }
    }
}

#[test]
fn npz_data_that_differs_from_its_checksum() {
    for method in [Stored, Deflated] {
        let mut bytes = zipped(method, &[("q.npy", &array())]);
        // The checksum is at 14 of the local header and at 16 of the central one.
        let at = central(&bytes);
        bytes[14] ^= 1;
        bytes[at + 16] ^= 1;
        let error = refused(bytes);
        assert_eq!(error.array(), Some("q"));
        assert_fault!(error, Fault::BadArchive { .. });
    }
}

#[test]
fn npz_duplicate_members() {
    let mut bytes = zipped(Stored, &[("q.npy", &array()), ("k.npy", &array())]);
    while let Some(at) = bytes.windows(5).position(|name| name == b"k.npy") {
        bytes[at] = b'q';
    }
    assert_fault!(refused(bytes), Fault::DuplicateMember);
}

#[test]
fn npz_members_that_share_their_bytes() {
    let mut bytes = zipped(Stored, &[("q.npy", &array()), ("k.npy", &array())]);
    // The second central entry's local header offset, at 42 of its 46 + 5 bytes, becomes the first's: 0.
    let second = central(&bytes) + 46 + 5;
    assert_eq!(&bytes[second..second + 4], b"PK\x01\x02");
    bytes[second + 42..second + 46].fill(0);
    assert_fault!(refused(bytes), Fault::BadArchive { .. });
}

#[test]
fn npz_member_that_is_not_npy() {
    let error = refused(zipped(Stored, &[("q.npy", &array()), ("notes.txt", b"hello")]));
    assert_fault!(error, Fault::NotAnArray { member } if member == "notes.txt");
    let error = refused(zipped(Deflated, &[("q.npy", b"no array but named like one")]));
    assert_eq!(error.array(), Some("q"));
    assert_fault!(error, Fault::BadHeader { .. });
}

#[test]
fn npz_member_shorter_or_longer_than_its_shape() {
    for method in [Stored, Deflated] {
        for data in [&[0; 7][..], &[0; 9], &[]] {
            let error = refused(zipped(method, &[("q.npy", &npy_of("<f4", "(2,)", data))]));
            assert_fault!(error, Fault::SizeMismatch { need: 8, .. });
        }
        for length in [0, 1, 9, 10, 11, 12, 13, 40] {
            let error = refused(zipped(method, &[("q.npy", &array()[..length])]));
            assert_fault!(error, Fault::CutShort { .. });
        }
    }
}

#[test]
fn npz_deflate_bomb() {
    // 64 MB of zeros behind a header that wants 4 bytes: refused from the header alone.
    let bomb = zipped(Deflated, &[("q.npy", &npy_of("<f4", "(1,)", &vec![0; 64_000_000]))]);
    assert!(bomb.len() < 100_000);
    assert_fault!(refused(bomb.clone()), Fault::SizeMismatch { need: 4, have: 64_000_000, .. });

    // The same, with sizes that go with the header: the data is more than was claimed.
    let header = npy_of("<f4", "(1,)", &[]).len() as u32;
    let mut liar = bomb;
    let at = central(&liar);
    liar[at + 24..at + 28].copy_from_slice(&(header + 4).to_le_bytes());
    liar[22..26].copy_from_slice(&(header + 4).to_le_bytes());
    let error = refused(liar);
    assert_fault!(error, Fault::SizeMismatch { .. } | Fault::BadArchive { .. });
}

#[test]
fn npz_claims_more_than_deflate_can_hold() {
    let header = npy_of("<u1", "(4000000000,)", &[]);
    let mut bytes = zipped(Deflated, &[("q.npy", &npy_of("<u1", "(4000000000,)", &[0; 100]))]);
    let claim = (header.len() as u32 + 4_000_000_000).to_le_bytes();
    let at = central(&bytes);
    bytes[at + 24..at + 28].copy_from_slice(&claim);
    bytes[22..26].copy_from_slice(&claim);
    // What its few bytes could become at most; the 100 that they do become were not looked at, nor memory taken.
    assert_fault!(refused(bytes), Fault::SizeMismatch { need: 4_000_000_000, have, .. } if *have % 1032 == 0);
}

#[test]
fn npz_encrypted() {
    let error = refused(include_bytes!("data/refused_encrypted.npz").to_vec());
    assert_fault!(error, Fault::Encrypted);
}

#[test]
fn npz_compressed_otherwise() {
    let error = refused(include_bytes!("data/refused_bzip2.npz").to_vec());
    assert_fault!(error, Fault::UnsupportedCompression { .. });
}

#[test]
fn npz_broken_member_is_read_around() {
    let bytes = zipped(Stored, &[("q.npy", &array()), ("label.npy", &npy_of("<U3", "(1,)", &[0; 12]))]);
    let error = refused(bytes.clone());
    assert_eq!(error.array(), Some("label"));
    assert_fault!(error, Fault::UnsupportedDtype { .. });
    let bundle = read_bytes(bytes, Format::Npz, &ReadOptions::new().only(["q"])).unwrap();
    assert_eq!(bundle.names().collect::<Vec<_>>(), ["q"]);
}

#[test]
fn npz_without_members() {
    let bundle = read_bytes(zipped(Stored, &[]), Format::Npz, &ReadOptions::new()).unwrap();
    assert!(bundle.arrays.is_empty());
}
