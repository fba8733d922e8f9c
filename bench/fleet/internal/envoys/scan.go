package envoys

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// response is a DeltaDiscoveryResponse as it lies in its bytes.
type response struct {
	typeURL, nonce []byte
	resources      [][]byte // each an encoded Resource
	removed        [][]byte
}

var errWire = errors.New("reading a response: it is not the wire format of protobuf")

// fields calls f for every field of a message that has bytes; others are passed
// over.
func fields(msg []byte, f func(number protowire.Number, value []byte)) error {
	for len(msg) > 0 {
		number, kind, n := protowire.ConsumeTag(msg)
		if n < 0 {
			return errWire
		}
		msg = msg[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, msg); n < 0 {
				return errWire
			}
			msg = msg[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(msg)
		if n < 0 {
			return errWire
		}
		f(number, value)
		msg = msg[n:]
	}
	return nil
}

// scan reads a response; its slices are kept from one to the next.
func (r *response) scan(msg []byte) error {
	r.typeURL, r.nonce = nil, nil
	r.resources, r.removed = r.resources[:0], r.removed[:0]
	return fields(msg, func(number protowire.Number, value []byte) {
		switch number {
		case 2:
			r.resources = append(r.resources, value)
		case 4:
			r.typeURL = value
		case 5:
			r.nonce = value
		case 6:
			r.removed = append(r.removed, value)
		default:
		}
	})
}

// resource is one of a response.
type resource struct{ name, version, body []byte }

func scanResource(msg []byte) (resource, error) {
	var r resource
	err := fields(msg, func(number protowire.Number, value []byte) {
		switch number {
		case 1:
			r.version = value
		case 3:
			r.name = value
		case 2: // an Any: the value is its field 2
			_ = fields(value, func(number protowire.Number, v []byte) {
				if number == 2 {
					r.body = v
				}
			})
		default:
		}
	})
	return r, err
}

// request is a DeltaDiscoveryRequest as it is written.
type request struct{ b []byte }

func newRequest(typeURL string) *request {
	r := &request{}
	return r.text(2, typeURL)
}

func (r *request) text(number protowire.Number, s string) *request {
	r.b = protowire.AppendTag(r.b, number, protowire.BytesType)
	r.b = protowire.AppendString(r.b, s)
	return r
}

func (r *request) node(encoded []byte) *request {
	r.b = protowire.AppendTag(r.b, 1, protowire.BytesType)
	r.b = protowire.AppendBytes(r.b, encoded)
	return r
}

func (r *request) subscribe(name string)   { r.text(3, name) }
func (r *request) unsubscribe(name string) { r.text(4, name) }

func (r *request) has(name, version string) *request {
	size := protowire.SizeTag(1) + protowire.SizeBytes(len(name)) + protowire.SizeTag(2) + protowire.SizeBytes(len(version))
	r.b = protowire.AppendTag(r.b, 5, protowire.BytesType)
	r.b = protowire.AppendVarint(r.b, uint64(size))
	return r.text(1, name).text(2, version)
}

func (r *request) answer(nonce []byte) *request {
	r.b = protowire.AppendTag(r.b, 6, protowire.BytesType)
	r.b = protowire.AppendBytes(r.b, nonce)
	return r
}

// refuse makes the request a NACK.
func (r *request) refuse(why string) *request {
	status := protowire.AppendTag(nil, 1, protowire.VarintType)
	status = protowire.AppendVarint(status, 13)
	status = protowire.AppendTag(status, 2, protowire.BytesType)
	status = protowire.AppendString(status, why)
	r.b = protowire.AppendTag(r.b, 7, protowire.BytesType)
	r.b = protowire.AppendBytes(r.b, status)
	return r
}
