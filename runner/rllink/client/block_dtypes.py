"""The dtypes that an array block may have: numbers of fixed size, little endian."""

DTYPES = ("|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8")
