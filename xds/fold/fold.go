package fold

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// The fields of the messages that are looked at.
const (
	tableName  = 1 // of a RouteConfiguration
	tableHosts = 2
	tableVHDS  = 9
	hostName   = 1 // of a VirtualHost
)

// maxSize is more than Envoy takes in one message.
const maxSize = 1 << 30

// Separator stands between a table's name and a host's in the name of a virtual
// host that travels by itself: TABLE/HOST.
const Separator = "/"

// host is a virtual host in two pieces.
type host struct {
	name []byte // TABLE/HOST
	rest []byte // its other fields, encoded
}

// Fold gives the encoding of the whole route configuration. The shell is one
// with vhds, which goes; hosts are the encodings of VirtualHosts with names
// TABLE/HOST, of which HOST stays. They are sorted by name, whatever their order
// here, and come after the virtual hosts of the shell itself. Any valid encoding
// will do; of deterministic ones comes a deterministic one. Nothing that is
// given is kept or changed.
func Fold(shell []byte, hosts [][]byte) ([]byte, error) {
	t, err := split(shell)
	if err != nil {
		return nil, fmt.Errorf("reading a route configuration: %w", err)
	}
	list, err := t.parse(hosts)
	if err != nil {
		return nil, err
	}
	skip := len(t.name) + len(Separator)
	size := protowire.SizeTag(tableName) + protowire.SizeBytes(len(t.name)) + len(t.own) + len(t.rest)
	for i := range list {
		size += protowire.SizeTag(tableHosts) + protowire.SizeBytes(list[i].size(skip))
	}
	if size > maxSize {
		return nil, fmt.Errorf("folding %q: %d bytes are more than one message holds", t.name, size)
	}
	out := make([]byte, 0, size)
	if len(t.name) > 0 {
		out = protowire.AppendTag(out, tableName, protowire.BytesType)
		out = protowire.AppendBytes(out, t.name)
	}
	out = append(out, t.own...)
	for i := range list {
		h := &list[i]
		out = protowire.AppendTag(out, tableHosts, protowire.BytesType)
		out = protowire.AppendVarint(out, uint64(h.size(skip)))
		out = protowire.AppendTag(out, hostName, protowire.BytesType)
		out = protowire.AppendBytes(out, h.name[skip:])
		out = append(out, h.rest...)
	}
	return append(out, t.rest...), nil
}

// Expects reports whether a route configuration waits for virtual hosts that
// come separately.
func Expects(table []byte) bool {
	t, err := split(table)
	return err == nil && t.vhds
}

// table is a route configuration without its vhds.
type table struct {
	name []byte
	own  []byte // the virtual hosts in it, encoded as its fields
	rest []byte // its other fields, encoded
	vhds bool
}

func split(body []byte) (table, error) {
	var t table
	err := fields(body, func(f field) {
		switch {
		case f.is(tableName):
			t.name = f.value
		case f.is(tableHosts):
			t.own = append(t.own, f.all...)
		case f.is(tableVHDS):
			t.vhds = true
		default:
			t.rest = append(t.rest, f.all...)
		}
	})
	return t, err
}

// parse reads the names of hosts, sorts by them, and refuses those of another
// table.
func (t *table) parse(hosts [][]byte) ([]host, error) {
	list := make([]host, 0, len(hosts))
	prefix := string(t.name) + Separator
	for _, body := range hosts {
		h, err := parseHost(body)
		if err != nil {
			return nil, fmt.Errorf("reading a virtual host of %q: %w", t.name, err)
		}
		if len(h.name) <= len(prefix) || string(h.name[:len(prefix)]) != prefix {
			return nil, fmt.Errorf("folding %q: virtual host %q is not of it", t.name, h.name)
		}
		list = append(list, h)
	}
	byName := func(a, b host) int { return bytes.Compare(a.name, b.name) }
	if !slices.IsSortedFunc(list, byName) {
		slices.SortFunc(list, byName)
	}
	for i := 1; i < len(list); i++ {
		if bytes.Equal(list[i].name, list[i-1].name) {
			return nil, fmt.Errorf("folding %q: virtual host %q is there twice", t.name, list[i].name)
		}
	}
	return list, nil
}

func parseHost(body []byte) (host, error) {
	var h host
	start, names := 0, 0
	err := fields(body, func(f field) {
		if f.is(hostName) {
			h.name = f.value
			if names++; names == 1 && f.at == 0 {
				start = len(f.all)
			}
		}
	})
	if err != nil {
		return h, err
	}
	if names == 1 && start > 0 { // as everybody writes it: then the rest is in one piece
		h.rest = body[start:]
		return h, nil
	}
	err = fields(body, func(f field) {
		if !f.is(hostName) {
			h.rest = append(h.rest, f.all...)
		}
	})
	return h, err
}

// size is that of the encoded host, without the first bytes of its name.
func (h *host) size(skip int) int {
	return protowire.SizeTag(hostName) + protowire.SizeBytes(len(h.name)-skip) + len(h.rest)
}

// field is one field of a message, as it is encoded.
type field struct {
	number protowire.Number
	kind   protowire.Type
	at     int    // where it begins
	all    []byte // tag and value
	value  []byte // of bytes, strings and messages
}

// is reports whether it is the field of that number. One with another wire type
// is not: readers keep it as a field that they do not know.
func (f *field) is(n protowire.Number) bool { return f.number == n && f.kind == protowire.BytesType }

var errEncoding = errors.New("it is not the encoding of a message")

// fields calls f for each field in turn.
func fields(body []byte, f func(field)) error {
	for at := 0; at < len(body); {
		number, kind, n := protowire.ConsumeTag(body[at:])
		if n < 0 {
			return errEncoding
		}
		m := protowire.ConsumeFieldValue(number, kind, body[at+n:])
		if m < 0 {
			return errEncoding
		}
		x := field{number: number, kind: kind, at: at, all: body[at : at+n+m]}
		if kind == protowire.BytesType {
			x.value, _ = protowire.ConsumeBytes(body[at+n:])
		}
		f(x)
		at += n + m
	}
	return nil
}
