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
	entryKey           = 1
	entryValue         = 2
)

var errNotText = errors.New("a name that is not UTF-8")

// maxNode bounds the encoding of a node, in bytes. Envoy's is a tenth of it, most
// of that a list of its extensions.
const maxNode = 256 << 10

// DecodeRequest decodes a request as protocol buffers are decoded, only that its
// names and versions share the memory of one text: a peer that comes back lists
// thousands of them, and thousands of peers come back at once. The node is left
// out; [DecodeNode] has it. More than maxNames of a kind are an error, before they
// take any memory.
func DecodeRequest(frame []byte, maxNames int) (*discovery.DeltaDiscoveryRequest, error) {
	l := lists{frame: frame}
	if err := l.count(maxNames); err != nil {
		return nil, fmt.Errorf("decoding a request: %w", err)
	}
	l.text = string(frame)
	if err := l.read(); err != nil {
		return nil, fmt.Errorf("decoding a request: %w", err)
	}
	req := &discovery.DeltaDiscoveryRequest{}
	if err := proto.Unmarshal(l.rest, req); err != nil {
		return nil, fmt.Errorf("decoding a request: %w", err)
	}
	req.ResourceNamesSubscribe, req.ResourceNamesUnsubscribe, req.InitialResourceVersions = l.subscribe, l.unsubscribe, l.versions
	return req, nil
}

// DecodeNode decodes who asks, and nothing else of a request; nil if it does not
// say.
func DecodeNode(frame []byte) (*corev3.Node, error) {
	var out *corev3.Node
	for at := 0; at < len(frame); {
		num, typ, n := protowire.ConsumeField(frame[at:])
		if n < 0 {
			return nil, fmt.Errorf("decoding a request: %w", protowire.ParseError(n))
		}
		if num == requestNode && typ == protowire.BytesType {
			if n > maxNode {
				return nil, fmt.Errorf("a node of %d bytes, at most %d: %w", n, maxNode, ErrLimit)
			}
			if out == nil {
				out = &corev3.Node{}
			}
			merge := proto.UnmarshalOptions{Merge: true} // as fields are that are said twice
			if err := merge.Unmarshal(contentOf(frame[at:at+n]), out); err != nil {
				return nil, fmt.Errorf("decoding the node of a request: %w", err)
			}
		}
		at += n
	}
	return out, nil
}

// contentOf is what a field of bytes has, without its tag and length.
func contentOf(field []byte) []byte {
	_, _, n := protowire.ConsumeTag(field)
	content, _ := protowire.ConsumeBytes(field[n:])
	return content
}

// lists are the long parts of a request.
type lists struct {
	frame                  []byte
	text                   string // the same bytes
	subscribe, unsubscribe []string
	versions               map[string]string
	rest                   []byte // all other fields
}

// count makes room.
func (l *lists) count(most int) error {
	var counts [requestVersions + 1]int
	for at := 0; at < len(l.frame); {
		num, typ, n := protowire.ConsumeField(l.frame[at:])
		if n < 0 {
			return protowire.ParseError(n) //nolint:wrapcheck // the caller wraps it
		}
		if typ == protowire.BytesType && num <= requestVersions {
			counts[num]++
		}
		at += n
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
		l.versions = make(map[string]string, n)
	}
	return nil
}

func (l *lists) read() error {
	for at := 0; at < len(l.frame); {
		num, typ, n := protowire.ConsumeField(l.frame[at:])
		field := l.frame[at : at+n]
		at += n
		if num == requestNode && typ == protowire.BytesType {
			continue
		}
		if typ != protowire.BytesType || num < requestSubscribe || num > requestVersions {
			l.rest = append(l.rest, field...)
			continue
		}
		content := contentOf(field)
		if num == requestVersions {
			if err := l.version(content, at-len(content)); err != nil {
				return err
			}
			continue
		}
		if !utf8.Valid(content) {
			return errNotText
		}
		name := l.text[at-len(content) : at]
		if num == requestSubscribe {
			l.subscribe = append(l.subscribe, name)
		} else {
			l.unsubscribe = append(l.unsubscribe, name)
		}
	}
	return nil
}

// version reads one entry of the map, which lies at some place of the frame.
func (l *lists) version(entry []byte, at int) error {
	var pair [entryValue + 1]string
	for len(entry) > 0 {
		num, typ, n := protowire.ConsumeField(entry)
		if n < 0 {
			return protowire.ParseError(n) //nolint:wrapcheck // the caller wraps it
		}
		if typ == protowire.BytesType && (num == entryKey || num == entryValue) {
			content := contentOf(entry[:n])
			if !utf8.Valid(content) {
				return errNotText
			}
			pair[num] = l.text[at+n-len(content) : at+n]
		}
		entry, at = entry[n:], at+n
	}
	l.versions[pair[entryKey]] = pair[entryValue]
	return nil
}
