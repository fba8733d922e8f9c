package stream

import (
	"slices"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"
)

// Response is one response to be sent. It refers to the encodings of its
// resources, which it shares with others; read-only.
type Response struct {
	TypeURL              TypeURL
	Nonce, SystemVersion string
	Resources            []*Resource
	Removed              []string
}

// Message is the response as a message, for those who look into it; nil of nil.
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

// Size is the length of the encoding, in bytes.
func (r *Response) Size() int {
	n := r.ownSize()
	for _, x := range r.Resources {
		n += len(x.wire)
	}
	return n
}

// ownSize is the size of what is not shared with others.
func (r *Response) ownSize() int {
	n := textSize(responseVersion, r.SystemVersion) + fieldSize(responseTypeURL, len(r.TypeURL)) + textSize(responseNonce, r.Nonce)
	for _, name := range r.Removed {
		n += fieldSize(responseRemoved, len(name))
	}
	return n
}

// AppendBuffers appends the encoding, in pieces, which must not be written to:
// the bytes of the resources are those of the resources themselves. Resources
// that lie one behind the other in memory, as those of an [Arena] do, are one
// piece: a frame is then filled from one instead of a dozen.
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
	var piece []byte
	for _, x := range r.Resources {
		switch n := len(piece); {
		case n == 0:
			piece = x.wire
		case cap(piece)-n >= len(x.wire) && &piece[:n+1][n] == &x.wire[0]:
			piece = piece[:n+len(x.wire)]
		default:
			dst = append(dst, slices.Clip(piece))
			piece = x.wire
		}
	}
	if len(piece) > 0 {
		dst = append(dst, slices.Clip(piece))
	}
	return dst
}

// textSize is the size of a field that is left out if empty.
func textSize(n protowire.Number, s string) int {
	if s == "" {
		return 0
	}
	return fieldSize(n, len(s))
}
