package consul

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"strings"

	"github.com/fairlead/fairlead/registry/consul/client"
)

// nameWritten is how much of a name in an answer is kept, in bytes as they are
// written there: more than any that can be asked for.
const nameWritten = 8 * maxName

// listing are the services by name, with a hash of the tags of each. Their tags
// are what whoever registers one makes as long as they please, so they are not
// kept, not even for a moment.
type listing map[string]uint64

// readListing reads Consul's list of services, {"NAME": ["TAG", …], …}.
func readListing(r io.Reader) (listing, error) {
	s := &scanner{r: bufio.NewReaderSize(r, 64<<10), h: fnv.New64a()}
	out := listing{}
	if err := s.expect('{'); err != nil {
		return nil, err
	}
	for more, err := s.more('}'); more || err != nil; more, err = s.next('}') {
		if err != nil {
			return nil, err
		}
		name, err := s.name()
		if err == nil {
			err = s.expect(':')
		}
		if err == nil {
			out[name], err = s.tags()
		}
		if err != nil {
			return nil, err
		}
		if len(out) > maxServices {
			return nil, client.Unusable(fmt.Sprintf("there are more services than the %d that this program carries", maxServices))
		}
	}
	return out, nil
}

// scanner reads JSON of one shape, in little memory: package encoding/json keeps
// each value whole.
type scanner struct {
	r *bufio.Reader
	h hash.Hash64
}

// char is the next byte that is no space.
func (s *scanner) char() (byte, error) {
	for {
		c, err := s.r.ReadByte()
		switch {
		case errors.Is(err, io.EOF):
			return 0, io.ErrUnexpectedEOF
		case err != nil:
			return 0, err
		case c != ' ' && c != '\n' && c != '\r' && c != '\t':
			return c, nil
		}
	}
}

func (s *scanner) expect(want byte) error {
	c, err := s.char()
	if err == nil && c != want {
		err = client.Unusable(fmt.Sprintf("the list of services has %q where %q belongs", c, want))
	}
	return err
}

// more reports whether a list that was opened has anything in it, and next
// whether another one follows.
func (s *scanner) more(end byte) (bool, error) {
	c, err := s.char()
	if err != nil || c == end {
		return false, err
	}
	return true, s.r.UnreadByte()
}

func (s *scanner) next(end byte) (bool, error) {
	c, err := s.char()
	if err != nil || c == end {
		return false, err
	}
	if c != ',' {
		return false, client.Unusable(fmt.Sprintf("the list of services has %q where %q belongs", c, ','))
	}
	return true, nil
}

// name is a string: the beginning of it, where it is too long for a name.
func (s *scanner) name() (string, error) {
	raw := []byte{'"'}
	err := s.text(func(part []byte) {
		raw = append(raw, part[:min(len(part), max(0, nameWritten-len(raw)))]...)
	})
	if err != nil {
		return "", err
	}
	if len(raw) >= nameWritten {
		return strings.ToValidUTF8(string(raw), "?"), nil
	}
	var name string
	if err := json.Unmarshal(append(raw, '"'), &name); err != nil {
		return "", err
	}
	return name, nil
}

// tags is a hash of a list of strings, in whatever order: Consul shuffles them.
func (s *scanner) tags() (uint64, error) {
	c, err := s.char()
	if err != nil {
		return 0, err
	}
	if c == 'n' { // null
		_, err := s.r.Discard(len("ull"))
		return 0, err
	}
	if err := s.r.UnreadByte(); err != nil {
		return 0, err
	}
	if err := s.expect('['); err != nil {
		return 0, err
	}
	sum := uint64(0)
	for more, err := s.more(']'); more || err != nil; more, err = s.next(']') {
		if err != nil {
			return 0, err
		}
		s.h.Reset()
		err := s.text(func(part []byte) { _, _ = s.h.Write(part) }) // never fails
		if err != nil {
			return 0, err
		}
		sum += s.h.Sum64()
	}
	return sum, nil
}

// text reads a string and hands over what is between its quotes, as it is
// written, in parts.
func (s *scanner) text(take func(part []byte)) error {
	if err := s.expect('"'); err != nil {
		return err
	}
	escaped := false
	for {
		if _, err := s.r.Peek(1); errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		} else if err != nil {
			return err
		}
		chunk, err := s.r.Peek(s.r.Buffered())
		if err != nil {
			return err
		}
		end := -1
		for i, c := range chunk {
			switch {
			case escaped:
				escaped = false
			case c == '\\':
				escaped = true
			case c == '"':
				end = i
			}
			if end >= 0 {
				break
			}
		}
		part, used := chunk, len(chunk)
		if end >= 0 {
			part, used = chunk[:end], end+1
		}
		take(part)
		if _, err := s.r.Discard(used); err != nil || end >= 0 {
			return err
		}
	}
}

// readList reads a list of anything, one after the other.
func readList[T any](r io.Reader, got func(T) error) error {
	d := json.NewDecoder(r)
	t, err := d.Token()
	if err != nil || t == nil {
		return err
	}
	if t != json.Delim('[') {
		return client.Unusable("the answer is no list")
	}
	for d.More() {
		var x T
		if err := d.Decode(&x); err != nil {
			return err
		}
		if err := got(x); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}
