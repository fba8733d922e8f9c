package envoymask_test

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/fairlead/fairlead/internal/envoymask"
)

const secretText, publicText = "TOP5ECRET", "everybody-knows"

// fill sets every field of a message, with a secret in those that Envoy calls sensitive. Of a
// oneof, the field at which wanted is at the time is set.
func fill(m protoreflect.Message, annotation protoreflect.ExtensionType, secret bool, choice, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if o := fd.ContainingOneof(); o != nil && !o.IsSynthetic() && o.Fields().Get(choice%o.Fields().Len()) != fd {
			continue
		}
		sensitive := secret || proto.GetExtension(fd.Options(), annotation).(bool)
		text := publicText
		if sensitive {
			text = secretText
		}
		switch {
		case fd.IsMap():
		case fd.Message() != nil && fd.Message().FullName().Parent() == "google.protobuf":
		case fd.Message() != nil && depth == 0:
		case fd.IsList() && fd.Message() != nil:
			fill(m.Mutable(fd).List().AppendMutable().Message(), annotation, sensitive, choice, depth-1)
		case fd.Message() != nil:
			fill(m.Mutable(fd).Message(), annotation, sensitive, choice, depth-1)
		case fd.Kind() == protoreflect.StringKind && fd.IsList():
			m.Mutable(fd).List().Append(protoreflect.ValueOfString(text))
		case fd.Kind() == protoreflect.StringKind:
			m.Set(fd, protoreflect.ValueOfString(text))
		case fd.Kind() == protoreflect.BytesKind && !fd.IsList():
			m.Set(fd, protoreflect.ValueOfBytes([]byte(text)))
		}
	}
}

// TestNothingSensitiveIsLeft iterates over the fields that Envoy's own API calls sensitive, in
// everything that a secret may be.
func TestNothingSensitiveIsLeft(t *testing.T) {
	t.Parallel()
	encoded := base64.StdEncoding.EncodeToString([]byte(secretText))
	annotation, err := protoregistry.GlobalTypes.FindExtensionByName("udpa.annotations.sensitive")
	if err != nil {
		t.Fatal(err)
	}
	before := 0
	for choice := range 12 {
		s := &tlsv3.Secret{}
		fill(s.ProtoReflect(), annotation, false, choice, 5)
		for _, names := range []bool{true, false} {
			b, err := protojson.MarshalOptions{UseProtoNames: names}.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			before += bytes.Count(b, []byte(secretText)) + bytes.Count(b, []byte(encoded))
			out, err := envoymask.JSON(b)
			if err != nil || bytes.Contains(out, []byte(secretText)) || bytes.Contains(out, []byte(encoded)) {
				t.Errorf("%v: %s", err, out)
			}
			if bytes.Contains(b, []byte("trusted_ca")) && !bytes.Contains(out, []byte(publicText)) {
				t.Errorf("what is public is masked: %s", out)
			}
		}
	}
	if before < 10 {
		t.Errorf("%d secrets to mask: the test is empty", before)
	}
}

// TestKeysInOddPlaces: a certificate's file with its key in it, a number of 64 bits.
func TestKeysInOddPlaces(t *testing.T) {
	t.Parallel()
	pem := "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"
	in := `{"a":[{"inline_string":"cert\n` + strings.ReplaceAll(pem, "\n", `\n`) + `"}],"inline_bytes":"` + base64.StdEncoding.EncodeToString([]byte("cert"+pem)) + `","n":9007199254740993}`
	out, err := envoymask.JSON([]byte(in))
	if want := `{"a":[{"inline_string":"[masked]"}],"inline_bytes":"[masked]","n":9007199254740993}`; err != nil || string(out) != want {
		t.Errorf("%v %s, want %s", err, out, want)
	}
	if _, err := envoymask.JSON([]byte("{")); err == nil {
		t.Error("half a document is masked")
	}
}

// TestCredentialsOfReceivers: tokens that Envoy shows to receivers of spans and logs are masked;
// headers of requests are not.
func TestCredentialsOfReceivers(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"http_service":{"http_uri":{"uri":"a"},"request_headers_to_add":[{"header":{"key":"k","value":"s"}}]}}`:    `{"http_service":{"http_uri":{"uri":"a"},"request_headers_to_add":[{"header":{"key":"k","value":"[masked]"}}]}}`,
		`{"collectorService":{"httpUri":{"uri":"a"},"requestHeadersToAdd":[{"header":{"key":"k","rawValue":"s"}}]}}`: `{"collectorService":{"httpUri":{"uri":"a"},"requestHeadersToAdd":[{"header":{"key":"k","rawValue":"[masked]"}}]}}`,
		`{"grpc_service":{"initial_metadata":[{"key":"k","value":"s"}]}}`:                                            `{"grpc_service":{"initial_metadata":[{"key":"k","value":"[masked]"}]}}`,
		`{"client_config":{"backend_token":"s"}}`:                                                                    `{"client_config":{"backend_token":"[masked]"}}`,
		`{"routes":[{"request_headers_to_add":[{"header":{"key":"k","value":"v"}}]}]}`:                               `{"routes":[{"request_headers_to_add":[{"header":{"key":"k","value":"v"}}]}]}`,
	} {
		got, err := envoymask.JSON([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
}
