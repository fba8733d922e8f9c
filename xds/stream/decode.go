package stream

import (
	"errors"
	"fmt"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Field numbers of DeltaDiscoveryRequest (envoy/service/discovery/v3/discovery.proto).
const (
	requestNode        = 1
	requestSubscribe   = 3
	requestUnsubscribe = 4
	requestVersions    = 5
	mapKey             = 1
	mapValue           = 2
)

var errNotText = errors.New("a name that is not UTF-8")

// maxNode bounds the encoding of a node, in bytes. Envoy's takes a tenth of it, mostly a
// list of its extensions.
const maxNode = 256 << 10

// DecodeRequest decodes a request. Unlike proto.Unmarshal, it makes no map: names and
// versions are substrings of the frame. A peer that reconnects lists thousands of them,
// and thousands of peers reconnect at once. The node is left out; see [DecodeNode]. More
// than maxNames names or versions are an error, before they take any memory.
func DecodeRequest(frame string, maxNames int) (*Request, error) {
	l := requestFields{fields: fields{text: frame}}
	if err := l.count(maxNames); err != nil {
		return nil, fmt.Errorf("decoding a request: %w", err)
	}
	if err := l.read(); err != nil {
		return nil, fmt.Errorf("decoding a request: %w", err)
	}
	req := &discovery.DeltaDiscoveryRequest{}
	if err := proto.Unmarshal(l.rest, req); err != nil {
		return nil, fmt.Errorf("decoding a request: %w", err)
	}
	req.ResourceNamesSubscribe, req.ResourceNamesUnsubscribe = l.subscribe, l.unsubscribe
	return &Request{DeltaDiscoveryRequest: req, Versions: l.versions}, nil
}

// DecodeNode decodes the node of a request and nothing else; nil if there is none.
func DecodeNode(frame string) (*corev3.Node, error) {
	var out *corev3.Node
	for f := (fields{text: frame}); f.at < len(f.text); {
		num, content, isBytes, err := f.next()
		if err != nil {
			return nil, fmt.Errorf("decoding a request: %w", err)
		}
		if num != requestNode || !isBytes {
			continue
		}
		if len(content) > maxNode {
			return nil, fmt.Errorf("a node of %d bytes, at most %d: %w", len(content), maxNode, ErrLimit)
		}
		if out == nil {
			out = &corev3.Node{}
		}
		merge := proto.UnmarshalOptions{Merge: true} // as protobuf does with a field that occurs twice
		if err := merge.Unmarshal([]byte(content), out); err != nil {
			return nil, fmt.Errorf("decoding the node of a request: %w", err)
		}
	}
	return out, nil
}

// fields iterates over the fields of a message.
type fields struct {
	text  string
	at    int
	bytes []byte // a copy of text, made for the first field that is not length-delimited
}

// next reads one field. content is set for length-delimited fields.
func (f *fields) next() (num protowire.Number, content string, isBytes bool, err error) {
	if num, content, end := simpleField(f.text, f.at); end > 0 {
		f.at = end
		return num, content, true, nil
	}
	// The protocol has no such fields, so this path may be slow.
	if f.bytes == nil {
		f.bytes = []byte(f.text)
	}
	num, typ, n := protowire.ConsumeField(f.bytes[f.at:])
	if n < 0 {
		return 0, "", false, protowire.ParseError(n) //nolint:wrapcheck // the caller wraps it
	}
	field := f.text[f.at : f.at+n]
	f.at += n
	if typ != protowire.BytesType {
		return num, "", false, nil
	}
	_, _, tag := protowire.ConsumeTag(f.bytes[f.at-n:])
	_, size := protowire.ConsumeVarint(f.bytes[f.at-n+tag:])
	return num, field[tag+size:], true, nil
}

// simpleField reads the length-delimited field at an offset. end is behind it, or 0 if
// there is another kind of field, or an unusual encoding.
func simpleField(text string, at int) (num protowire.Number, content string, end int) {
	tag, at := shortVarint(text, at)
	if at == 0 || tag&7 != uint64(protowire.BytesType) || tag>>3 == 0 || tag>>3 > uint64(protowire.MaxValidNumber) {
		return 0, "", 0
	}
	size, at := shortVarint(text, at)
	if at == 0 || size > uint64(len(text)-at) {
		return 0, "", 0
	}
	end = at + int(size)
	return protowire.Number(tag >> 3), text[at:end], end
}

// shortVarint reads a varint of at most five bytes; end is behind it, or 0.
func shortVarint(text string, at int) (value uint64, end int) {
	for shift := 0; shift < 35 && at < len(text); shift += 7 {
		b := text[at]
		at++
		value |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return value, at
		}
	}
	return 0, 0
}

// requestFields are the fields of a request: the long lists, and the rest.
type requestFields struct {
	fields
	subscribe, unsubscribe []string
	versions               []Version
	rest                   []byte // all other fields
}

// count counts the elements of the lists and allocates them.
func (l *requestFields) count(most int) error {
	var counts [requestVersions + 1]int
	for f := l.fields; f.at < len(f.text); {
		num, _, isBytes, err := f.next()
		if err != nil {
			return err
		}
		if isBytes && num <= requestVersions {
			counts[num]++
		}
		l.bytes = f.bytes
	}
	if n := max(counts[requestSubscribe], counts[requestUnsubscribe], counts[requestVersions]); n > most {
		return fmt.Errorf("%d names, at most %d: %w", n, most, ErrLimit)
	}
	if n := counts[requestSubscribe]; n > 0 {
		l.subscribe = make([]string, 0, n)
	}
	if n := counts[requestUnsubscribe]; n > 0 {
		l.unsubscribe = make([]string, 0, n)
	}
	if n := counts[requestVersions]; n > 0 {
		l.versions = make([]Version, 0, n)
	}
	return nil
}

func (l *requestFields) read() error {
	for l.at < len(l.text) {
		from := l.at
		num, content, isBytes, err := l.next()
		switch {
		case err != nil:
			return err
		case isBytes && num == requestNode:
		case isBytes && num == requestVersions:
			v, err := versionOf(content)
			if err != nil {
				return err
			}
			l.versions = append(l.versions, v)
		case isBytes && (num == requestSubscribe || num == requestUnsubscribe):
			if !utf8.ValidString(content) {
				return errNotText
			}
			if num == requestSubscribe {
				l.subscribe = append(l.subscribe, content)
			} else {
				l.unsubscribe = append(l.unsubscribe, content)
			}
		default:
			l.rest = append(l.rest, l.text[from:l.at]...)
		}
	}
	return nil
}

// versionOf reads one entry of the map initial_resource_versions.
func versionOf(entry string) (v Version, err error) {
	for f := (fields{text: entry}); f.at < len(f.text); {
		num, content, isBytes, err := f.next()
		if err != nil {
			return v, err
		}
		if !isBytes || num != mapKey && num != mapValue {
			continue
		}
		if !utf8.ValidString(content) {
			return v, errNotText
		}
		if num == mapKey {
			v.Name = content
		} else {
			v.Version = content
		}
	}
	return v, nil
}
