package accept

// headers finds the headers in a sequence of messages, each of which is a header of
// constant size and a body: records of TLS, frames of HTTP/2. What is read arrives in
// pieces of any size. Only the header is kept.
type headers struct {
	size int // of a header, at most frameHeader

	body   int // bytes until the next header; set by who has read a header
	header [max(recordHeader, frameHeader)]byte
	have   int // bytes of header
}

// next skips the rest of a body and returns the next header, which is valid until the
// next call, and what follows it; or nil if b ends before the end of a header.
func (h *headers) next(b []byte) (header, rest []byte) {
	skip := min(h.body, len(b))
	h.body -= skip
	b = b[skip:]
	n := copy(h.header[h.have:h.size], b)
	if h.have += n; h.have < h.size {
		return nil, nil
	}
	h.have = 0
	return h.header[:h.size], b[n:]
}
