package authz_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"gopkg.in/yaml.v3"
	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/xds/authz"
)

// fatalIf ends the test if err is not nil.
func fatalIf(tb testing.TB, err error, doing string) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("%s: %v", doing, err)
	}
}

// document is an AuthorizationPolicy as people write it.
type document struct {
	Metadata struct {
		Name, Namespace string
		Annotations     map[string]string
	}
	Spec any
}

// readPolicies decodes YAML documents.
func readPolicies(tb testing.TB, text string) []authz.Policy {
	tb.Helper()
	var out []authz.Policy
	for d := yaml.NewDecoder(bytes.NewReader([]byte(text))); ; {
		var doc document
		err := d.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return out
		}
		fatalIf(tb, err, "decoding a policy")
		p := authz.Policy{Namespace: doc.Metadata.Namespace, Name: doc.Metadata.Name}
		if v, set := doc.Metadata.Annotations["istio.io/dry-run"]; set {
			p.DryRun, err = strconv.ParseBool(v)
			fatalIf(tb, err, "reading an annotation")
		}
		if doc.Spec != nil {
			body, err := json.Marshal(doc.Spec)
			fatalIf(tb, err, "encoding a spec")
			p.Spec = &security.AuthorizationPolicy{}
			fatalIf(tb, protojson.Unmarshal(body, p.Spec), "decoding "+string(body))
		}
		out = append(out, p)
	}
}
