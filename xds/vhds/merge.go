package vhds

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// The fields of the messages that are read.
const (
	routeName         = 1 // of a RouteConfiguration
	routeVirtualHosts = 2
	routeVHDS         = 9
	virtualHostName   = 1 // of a VirtualHost
)

// maxSize is more than Envoy accepts in one message.
const maxSize = 1 << 30

// Separator is between the names of the route configuration and of the virtual host in the
// name of a VHDS resource: ROUTE_CONFIGURATION/HOST.
const Separator = "/"

// virtualHost is the encoding of a virtual host in two parts.
type virtualHost struct {
	name        []byte // ROUTE_CONFIGURATION/HOST
	otherFields []byte // its other fields, encoded
}

// Merge returns the encoding of the complete route configuration. base is a route
// configuration with vhds, which is removed. hosts are the encodings of VirtualHosts named
// ROUTE_CONFIGURATION/HOST; the result has HOST as their name. They are sorted by name, and
// come after the virtual hosts of base itself. Any valid encoding is accepted. If the input
// is encoded deterministically, so is the result. Merge does not keep or change its
// arguments.
func Merge(base []byte, hosts [][]byte) ([]byte, error) {
	t, err := split(base)
	if err != nil {
		return nil, fmt.Errorf("reading a route configuration: %w", err)
	}
	list, err := t.parse(hosts)
	if err != nil {
		return nil, err
	}
	skip := len(t.name) + len(Separator)
	size := protowire.SizeTag(routeName) + protowire.SizeBytes(len(t.name)) + len(t.inlineHosts) + len(t.otherFields)
	for i := range list {
		size += protowire.SizeTag(routeVirtualHosts) + protowire.SizeBytes(list[i].size(skip))
	}
	if size > maxSize {
		return nil, fmt.Errorf("merging %q: %d bytes exceed the limit of one message", t.name, size)
	}
	out := make([]byte, 0, size)
	if len(t.name) > 0 {
		out = protowire.AppendTag(out, routeName, protowire.BytesType)
		out = protowire.AppendBytes(out, t.name)
	}
	out = append(out, t.inlineHosts...)
	for i := range list {
		h := &list[i]
		out = protowire.AppendTag(out, routeVirtualHosts, protowire.BytesType)
		out = protowire.AppendVarint(out, uint64(h.size(skip)))
		out = protowire.AppendTag(out, virtualHostName, protowire.BytesType)
		out = protowire.AppendBytes(out, h.name[skip:])
		out = append(out, h.otherFields...)
	}
	return append(out, t.otherFields...), nil
}

// IsBase reports whether a route configuration gets virtual hosts by VHDS.
func IsBase(table []byte) bool {
	t, err := split(table)
	return err == nil && t.vhds
}

// routeConfiguration is a route configuration without its vhds.
type routeConfiguration struct {
	name        []byte
	inlineHosts []byte // the virtual hosts in it, encoded as its fields
	otherFields []byte // its other fields, encoded
	vhds        bool
}

func split(body []byte) (routeConfiguration, error) {
	var t routeConfiguration
	err := fields(body, func(f field) {
		switch {
		case f.is(routeName):
			t.name = f.value
		case f.is(routeVirtualHosts):
			t.inlineHosts = append(t.inlineHosts, f.all...)
		case f.is(routeVHDS):
			t.vhds = true
		default:
			t.otherFields = append(t.otherFields, f.all...)
		}
	})
	return t, err
}

// parse reads the names of virtual hosts and sorts by them. Those of another route
// configuration are an error.
func (t *routeConfiguration) parse(hosts [][]byte) ([]virtualHost, error) {
	list := make([]virtualHost, 0, len(hosts))
	prefix := string(t.name) + Separator
	for _, body := range hosts {
		h, err := parseHost(body)
		if err != nil {
			return nil, fmt.Errorf("reading a virtual host of %q: %w", t.name, err)
		}
		if len(h.name) <= len(prefix) || string(h.name[:len(prefix)]) != prefix {
			return nil, fmt.Errorf("merging %q: virtual host %q belongs to another route configuration", t.name, h.name)
		}
		list = append(list, h)
	}
	byName := func(a, b virtualHost) int { return bytes.Compare(a.name, b.name) }
	if !slices.IsSortedFunc(list, byName) {
		slices.SortFunc(list, byName)
	}
	for i := 1; i < len(list); i++ {
		if bytes.Equal(list[i].name, list[i-1].name) {
			return nil, fmt.Errorf("merging %q: duplicate virtual host %q", t.name, list[i].name)
		}
	}
	return list, nil
}

func parseHost(body []byte) (virtualHost, error) {
	var h virtualHost
	start, names := 0, 0
	err := fields(body, func(f field) {
		if f.is(virtualHostName) {
			h.name = f.value
			if names++; names == 1 && f.at == 0 {
				start = len(f.all)
			}
		}
	})
	if err != nil {
		return h, err
	}
	if names == 1 && start > 0 { // the usual encoding: the other fields are contiguous
		h.otherFields = body[start:]
		return h, nil
	}
	err = fields(body, func(f field) {
		if !f.is(virtualHostName) {
			h.otherFields = append(h.otherFields, f.all...)
		}
	})
	return h, err
}

// size is the size of the encoded virtual host, without the first bytes of its name.
func (h *virtualHost) size(skip int) int {
	return protowire.SizeTag(virtualHostName) + protowire.SizeBytes(len(h.name)-skip) + len(h.otherFields)
}

// field is one field of a message, as it is encoded.
type field struct {
	number protowire.Number
	kind   protowire.Type
	at     int    // where it begins
	all    []byte // tag and value
	value  []byte // of bytes, strings and messages
}

// is reports whether it is the field of that number. A field with another wire type is not:
// decoders keep it as an unknown field.
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
