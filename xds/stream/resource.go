package stream

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// Resource is one resource, made by [NewResource]. Immutable, and shared by
// pointer between sets, generations and streams.
type Resource struct {
	Name string
	// Version identifies the content; never empty.
	Version string
	// Body is the message's encoding, without the Any.
	Body []byte
	// Refs are the names of the route configurations that a listener uses; nil means
	// unknown. Other types have none: the endpoints of a cluster have its name.
	Refs []string
	// Hosts means that the virtual hosts of a route configuration are sent by VHDS, with
	// the names RC/host.
	Hosts bool

	// wire is the encoded resource as field 2 of a DeltaDiscoveryResponse, with tag and
	// length. Body is a part of it.
	wire []byte
}

// Field numbers in the messages of the protocol.
const (
	responseVersion   = 1
	responseResources = 2
	responseTypeURL   = 4
	responseNonce     = 5
	responseRemoved   = 6

	resourceVersion = 1
	resourceBody    = 2
	resourceName    = 3

	anyTypeURL = 1
	anyValue   = 2
)

// NewResource encodes a resource once, for all peers. The Body is copied.
func NewResource(url TypeURL, r Resource) *Resource { return (*Arena)(nil).NewResource(url, r) }

// Arena places resources that are made together behind one another in memory, so that a
// response with them consists of few buffers. The zero value is ready for use, by one
// goroutine; a nil Arena allocates each resource alone. One resource keeps up to
// arenaChunk bytes of its neighbours in memory.
type Arena struct{ chunk []byte }

// arenaChunk is the size of gRPC's largest frame: larger buffers save nothing.
const arenaChunk = 16 << 10

// room returns a buffer for n bytes.
func (a *Arena) room(n int) []byte {
	if a == nil || n > arenaChunk/2 {
		return make([]byte, 0, n)
	}
	if cap(a.chunk)-len(a.chunk) < n {
		a.chunk = make([]byte, 0, arenaChunk)
	}
	at := len(a.chunk)
	a.chunk = a.chunk[:at+n]
	return a.chunk[at:at] // AppendBuffers sees by its capacity what follows
}

// NewResource is the function of that name, with memory of the arena.
func (a *Arena) NewResource(url TypeURL, r Resource) *Resource {
	anySize := fieldSize(anyTypeURL, len(url)) + fieldSize(anyValue, len(r.Body))
	size := fieldSize(resourceVersion, len(r.Version)) + fieldSize(resourceBody, anySize) + fieldSize(resourceName, len(r.Name))

	b := a.room(fieldSize(responseResources, size))
	b = appendHead(b, responseResources, size)
	b = appendText(b, resourceVersion, r.Version)
	b = appendText(b, resourceName, r.Name)
	b = appendHead(b, resourceBody, anySize)
	b = appendText(b, anyTypeURL, string(url))
	b = appendHead(b, anyValue, len(r.Body))
	at := len(b)
	b = append(b, r.Body...)
	r.Body = slices.Clip(b[at:])
	r.wire = b
	return &r
}

func fieldSize(n protowire.Number, length int) int {
	return protowire.SizeTag(n) + protowire.SizeBytes(length)
}

// appendHead appends tag and length of a field.
func appendHead(b []byte, n protowire.Number, length int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.BytesType), uint64(length))
}

func appendText(b []byte, n protowire.Number, s string) []byte {
	return append(appendHead(b, n, len(s)), s...)
}

// version is the version of a resource, or empty for nil.
func (r *Resource) version() string {
	if r == nil {
		return ""
	}
	return r.Version
}

// body is the body of a resource, or nil for nil.
func (r *Resource) body() []byte {
	if r == nil {
		return nil
	}
	return r.Body
}
