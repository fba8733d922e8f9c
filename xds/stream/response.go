package stream

import (
	"slices"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"
)

// Response is one response to send. It refers to the encoded resources, which are shared
// with other streams; read-only.
type Response struct {
	TypeURL              TypeURL
	Nonce, SystemVersion string
	Resources            []*Resource
	Removed              []string
}

// Message is the response as a message, for tests and debugging; nil for nil.
func (r *Response) Message() *discovery.DeltaDiscoveryResponse {
	if r == nil {
		return nil
	}
	out := &discovery.DeltaDiscoveryResponse{
		TypeUrl: string(r.TypeURL), Nonce: r.Nonce, SystemVersionInfo: r.SystemVersion, RemovedResources: r.Removed,
	}
	for _, x := range r.Resources {
		out.Resources = append(out.Resources, &discovery.Resource{
			Name: x.Name, Version: x.Version, Resource: &anypb.Any{TypeUrl: string(r.TypeURL), Value: x.Body},
		})
	}
	return out
}

// Size is the encoded size, in bytes.
func (r *Response) Size() int {
	n := r.ownSize()
	for _, x := range r.Resources {
		n += len(x.wire)
	}
	return n
}

// ownSize is the size of what is not shared with other streams.
func (r *Response) ownSize() int {
	n := textSize(responseVersion, r.SystemVersion) + fieldSize(responseTypeURL, len(r.TypeURL)) + textSize(responseNonce, r.Nonce)
	for _, name := range r.Removed {
		n += fieldSize(responseRemoved, len(name))
	}
	return n
}

// AppendBuffers appends the encoding as buffers, which must not be written to: the bytes
// of the resources are shared. Resources that are neighbours in memory, as those of an
// [Arena], become one buffer: gRPC then fills a frame from one buffer instead of a dozen.
func (r *Response) AppendBuffers(dst [][]byte) [][]byte {
	own := make([]byte, 0, r.ownSize())
	if r.SystemVersion != "" {
		own = appendText(own, responseVersion, r.SystemVersion)
	}
	own = appendText(own, responseTypeURL, string(r.TypeURL))
	if r.Nonce != "" {
		own = appendText(own, responseNonce, r.Nonce)
	}
	for _, name := range r.Removed {
		own = appendText(own, responseRemoved, name)
	}
	dst = append(dst, own)
	var buffer []byte
	for _, x := range r.Resources {
		switch n := len(buffer); {
		case n == 0:
			buffer = x.wire
		case cap(buffer)-n >= len(x.wire) && &buffer[:n+1][n] == &x.wire[0]:
			buffer = buffer[:n+len(x.wire)]
		default:
			dst = append(dst, slices.Clip(buffer))
			buffer = x.wire
		}
	}
	if len(buffer) > 0 {
		dst = append(dst, slices.Clip(buffer))
	}
	return dst
}

// textSize is the size of a field that is omitted if empty.
func textSize(n protowire.Number, s string) int {
	if s == "" {
		return 0
	}
	return fieldSize(n, len(s))
}
