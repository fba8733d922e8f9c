package consul

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"strings"

	"github.com/fairlead/fairlead/registry/consul/client"
)

// maxToken bounds one string in a list of Consul, in bytes: whoever registers a
// service makes its tags as long as they please.
const maxToken = 64 << 20

// listing are the services by name, with a hash of the tags of each, which are not
// kept.
type listing map[string]uint64

// readListing reads Consul's list of services, {"NAME": ["TAG", …], …}, string by
// string: all tags of all services together may be very long.
func readListing(r io.Reader) (listing, error) {
	d := newDecoder(r)
	out := listing{}
	if err := d.open('{'); err != nil {
		return nil, err
	}
	for d.More() {
		name, err := d.text()
		if err != nil {
			return nil, err
		}
		if len(name) > maxName { // it is not asked for
			name = strings.ToValidUTF8(name[:maxName+1], "?")
		}
		if out[name], err = d.tags(); err != nil {
			return nil, err
		}
		if len(out) > maxServices {
			return nil, client.Unusable(fmt.Sprintf("there are more services than the %d that this program carries", maxServices))
		}
	}
	_, err := d.token()
	return out, err
}

// readList reads a list of anything, one after the other.
func readList[T any](r io.Reader, got func(T) error) error {
	d := newDecoder(r)
	t, err := d.token()
	if err != nil || t == nil {
		return err
	}
	if t != json.Delim('[') {
		return client.Unusable("the answer is no list")
	}
	for d.More() {
		var x T
		d.left = maxToken
		if err := d.Decode(&x); err != nil {
			return cutShort(err)
		}
		if err := got(x); err != nil {
			return err
		}
	}
	_, err = d.token()
	return err
}

// decoder reads JSON of which no string, or no entry of a list, is very long.
type decoder struct {
	*json.Decoder
	r    io.Reader
	left int // of the present string or entry
}

func newDecoder(r io.Reader) *decoder {
	d := &decoder{r: r, left: maxToken}
	d.Decoder = json.NewDecoder(limited{d})
	return d
}

// limited is the reader of a decoder.
type limited struct{ d *decoder }

// Read implements io.Reader.
func (l limited) Read(p []byte) (int, error) {
	if l.d.left <= 0 {
		return 0, client.Unusable(fmt.Sprintf("something in the answer is longer than %d bytes", maxToken))
	}
	n, err := l.d.r.Read(p[:min(len(p), l.d.left)])
	l.d.left -= n
	return n, err
}

// token is the next one. The end of the answer is not expected before it.
func (d *decoder) token() (json.Token, error) {
	d.left = maxToken
	t, err := d.Token()
	return t, cutShort(err)
}

// cutShort is the error of an answer that ends early.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (d *decoder) open(want json.Delim) error {
	t, err := d.token()
	if err == nil && t != want {
		err = client.Unusable(fmt.Sprintf("the list of services has %v where %v belongs", t, want))
	}
	return err
}

func (d *decoder) text() (string, error) {
	t, err := d.token()
	s, ok := t.(string)
	if err == nil && !ok {
		err = client.Unusable(fmt.Sprintf("the list of services has %v where a string belongs", t))
	}
	return s, err
}

// tags is a hash of a list of strings, in whatever order: Consul shuffles them.
func (d *decoder) tags() (uint64, error) {
	t, err := d.token()
	if err != nil || t == nil {
		return 0, err
	}
	if t != json.Delim('[') {
		return 0, client.Unusable(fmt.Sprintf("the list of services has %v where a list of tags belongs", t))
	}
	sum, h := uint64(0), fnv.New64a()
	for d.More() {
		tag, err := d.text()
		if err != nil {
			return 0, err
		}
		h.Reset()
		_, _ = io.WriteString(h, tag) // never fails
		sum += h.Sum64()
	}
	_, err = d.token()
	return sum, err
}
