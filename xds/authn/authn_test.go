package authn_test

import (
	"testing"

	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	securityv1 "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/xds/authn"
)

func TestNoRulesNoFilter(t *testing.T) {
	t.Parallel()
	if got := authn.Filter(nil, false); got != nil {
		t.Error(got)
	}
}

// The expected texts are what istiod makes of the same rules, but for the provider that has
// Envoy remove a client's own output headers.
func TestFilter(t *testing.T) {
	t.Parallel()
	const (
		removed   = `{"requires_any": {"requirements": [{"provider_name": "fairlead-output-headers"}, {"allow_missing": {}}]}}`
		preflight = `{"match": {"prefix": "/", "headers": [
			{"name": ":method", "string_match": {"exact": "OPTIONS"}}, {"name": "access-control-request-method", "string_match": {"safe_regex": {"regex": ".+"}}},
			{"name": "origin", "string_match": {"safe_regex": {"regex": ".+"}}}]}, "requires": ` + removed + `}`
		remover = `"fairlead-output-headers": {"issuer": "fairlead-output-headers", "local_jwks": {"inline_string": ""}, "from_headers": [{"name": "x-fairlead-nowhere"}], "claim_to_headers": `
	)
	for _, c := range []struct {
		name    string
		rules   []authn.Rule
		gateway bool
		want    string
	}{
		{"one", []authn.Rule{{Spec: &securityv1.JWTRule{Issuer: "a", JwksUri: "https://x", Timeout: durationpb.New(1)}, Keys: "keys"}}, false, `{
			"providers": {"origins-0": {
				"issuer": "a", "local_jwks": {"inline_string": "keys"}, "payload_in_metadata": "payload",
				"normalize_payload_in_metadata": {"space_delimited_claims": ["permission", "scope"]}}},
			"rules": [{"match": {"prefix": "/"}, "requires": {"requires_any": {"requirements": [{"provider_name": "origins-0"}, {"allow_missing": {}}]}}}],
			"bypass_cors_preflight": true}`},
		{"all-fields", []authn.Rule{{Spec: &securityv1.JWTRule{
			Issuer: "a", Audiences: []string{"x", "y"}, FromHeaders: []*securityv1.JWTHeader{{Name: "x-token", Prefix: "Bearer "}, {Name: "plain"}},
			FromParams: []string{"token"}, FromCookies: []string{"session"}, OutputPayloadToHeader: "x-payload", ForwardOriginalToken: true,
			OutputClaimToHeaders: []*securityv1.ClaimToHeader{{Header: "x-sub", Claim: "sub"}}, SpaceDelimitedClaims: []string{"z", "scope", "groups"},
		}, Keys: "keys"}}, true, `{
			"providers": {"origins-0": {
				"issuer": "a", "audiences": ["x", "y"], "local_jwks": {"inline_string": "keys"}, "payload_in_metadata": "payload", "forward": true,
				"from_headers": [{"name": "x-token", "value_prefix": "Bearer "}, {"name": "plain"}], "from_params": ["token"], "from_cookies": ["session"],
				"forward_payload_header": "x-payload", "claim_to_headers": [{"header_name": "x-sub", "claim_name": "sub"}], "clear_route_cache": true,
				"normalize_payload_in_metadata": {"space_delimited_claims": ["groups", "permission", "scope", "z"]}},
				` + remover + `[{"header_name": "x-payload", "claim_name": "none"}, {"header_name": "x-sub", "claim_name": "none"}]}},
			"rules": [` + preflight + `, {"match": {"prefix": "/"}, "requires": {"requires_all": {"requirements": [` + removed + `,
				{"requires_any": {"requirements": [{"provider_name": "origins-0"}, {"allow_missing": {}}]}}]}}}]}`},
		{"check-only", []authn.Rule{{Spec: &securityv1.JWTRule{
			Issuer: "a", FromHeaders: []*securityv1.JWTHeader{{Name: "x-token"}}, OutputPayloadToHeader: "x-payload", ForwardOriginalToken: true,
			OutputClaimToHeaders: []*securityv1.ClaimToHeader{{Header: "x-sub", Claim: "sub"}}, SpaceDelimitedClaims: []string{"z"},
		}, Keys: "keys", CheckOnly: true}}, false, `{
			"providers": {"origins-0": {"issuer": "a", "local_jwks": {"inline_string": "keys"}, "forward": true, "from_headers": [{"name": "x-token"}]},
				` + remover + `[{"header_name": "x-payload", "claim_name": "none"}, {"header_name": "x-sub", "claim_name": "none"}]}},
			"rules": [` + preflight + `, {"match": {"prefix": "/"}, "requires": {"requires_all": {"requirements": [` + removed + `,
				{"requires_any": {"requirements": [{"provider_name": "origins-0"}, {"allow_missing": {}}]}}]}}}]}`},
		{"output headers of several", []authn.Rule{
			{Spec: &securityv1.JWTRule{Issuer: "b", OutputPayloadToHeader: "x-b", OutputClaimToHeaders: []*securityv1.ClaimToHeader{{Header: "X-Sub", Claim: "sub"}, {Header: "x-b", Claim: "b"}}}, CheckOnly: true},
			{Spec: &securityv1.JWTRule{Issuer: "a", OutputClaimToHeaders: []*securityv1.ClaimToHeader{{Header: "x-sub", Claim: "sub"}, {Header: "X-A", Claim: "a"}}}},
		}, false, `{
			"providers": {
				"origins-0": {"issuer": "a", "local_jwks": {"inline_string": ""}, "payload_in_metadata": "payload",
					"claim_to_headers": [{"header_name": "x-sub", "claim_name": "sub"}, {"header_name": "X-A", "claim_name": "a"}],
					"normalize_payload_in_metadata": {"space_delimited_claims": ["permission", "scope"]}},
				"origins-1": {"issuer": "b", "local_jwks": {"inline_string": ""}},
				` + remover + `[{"header_name": "x-a", "claim_name": "none"}, {"header_name": "x-b", "claim_name": "none"}, {"header_name": "x-sub", "claim_name": "none"}]}},
			"rules": [` + preflight + `, {"match": {"prefix": "/"}, "requires": {"requires_all": {"requirements": [` + removed + `,
				{"requires_any": {"requirements": [
					{"provider_name": "origins-0"}, {"provider_name": "origins-1"},
					{"requires_all": {"requirements": [
						{"requires_any": {"requirements": [{"provider_name": "origins-0"}, {"allow_missing": {}}]}},
						{"requires_any": {"requirements": [{"provider_name": "origins-1"}, {"allow_missing": {}}]}}]}}]}}]}}}]}`},
		{"one required", []authn.Rule{{Spec: &securityv1.JWTRule{Issuer: "a", Presence: securityv1.JWTRule_REQUIRED}, Keys: "keys"}}, false, `{
			"providers": {"origins-0": {
				"issuer": "a", "local_jwks": {"inline_string": "keys"}, "payload_in_metadata": "payload",
				"normalize_payload_in_metadata": {"space_delimited_claims": ["permission", "scope"]}}},
			"rules": [{"match": {"prefix": "/"}, "requires": {"provider_name": "origins-0"}}],
			"bypass_cors_preflight": true}`},
		{"one of two required", []authn.Rule{
			{Spec: &securityv1.JWTRule{Issuer: "b"}, Keys: "keys"},
			{Spec: &securityv1.JWTRule{Issuer: "a", Presence: securityv1.JWTRule_REQUIRED}, Keys: "keys"},
		}, false, `{
			"providers": {
				"origins-0": {"issuer": "a", "local_jwks": {"inline_string": "keys"}, "payload_in_metadata": "payload",
					"normalize_payload_in_metadata": {"space_delimited_claims": ["permission", "scope"]}},
				"origins-1": {"issuer": "b", "local_jwks": {"inline_string": "keys"}, "payload_in_metadata": "payload",
					"normalize_payload_in_metadata": {"space_delimited_claims": ["permission", "scope"]}}},
			"rules": [{"match": {"prefix": "/"}, "requires": {"requires_all": {"requirements": [
				{"provider_name": "origins-0"},
				{"requires_any": {"requirements": [{"provider_name": "origins-1"}, {"allow_missing": {}}]}}]}}}],
			"bypass_cors_preflight": true}`},
		{"several", []authn.Rule{
			{Spec: &securityv1.JWTRule{Issuer: "b"}, Keys: "first b"},
			{Spec: &securityv1.JWTRule{Issuer: "a"}},
			{Spec: &securityv1.JWTRule{Issuer: "b"}, Keys: "second b"},
		}, false, `{
			"providers": {
				"origins-0": {"issuer": "a", "local_jwks": {"inline_string": ""}, "payload_in_metadata": "payload",
					"normalize_payload_in_metadata": {"space_delimited_claims": ["permission", "scope"]}},
				"origins-1": {"issuer": "b", "local_jwks": {"inline_string": "first b"}, "payload_in_metadata": "payload",
					"normalize_payload_in_metadata": {"space_delimited_claims": ["permission", "scope"]}},
				"origins-2": {"issuer": "b", "local_jwks": {"inline_string": "second b"}, "payload_in_metadata": "payload",
					"normalize_payload_in_metadata": {"space_delimited_claims": ["permission", "scope"]}}},
			"rules": [{"match": {"prefix": "/"}, "requires": {"requires_any": {"requirements": [
				{"provider_name": "origins-0"}, {"provider_name": "origins-1"}, {"provider_name": "origins-2"},
				{"requires_all": {"requirements": [
					{"requires_any": {"requirements": [{"provider_name": "origins-0"}, {"allow_missing": {}}]}},
					{"requires_any": {"requirements": [{"provider_name": "origins-1"}, {"allow_missing": {}}]}},
					{"requires_any": {"requirements": [{"provider_name": "origins-2"}, {"allow_missing": {}}]}}]}}]}}}],
			"bypass_cors_preflight": true}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			before := make([]authn.Rule, len(c.rules))
			for i, r := range c.rules {
				before[i] = authn.Rule{Spec: proto.CloneOf(r.Spec), Keys: r.Keys, CheckOnly: r.CheckOnly}
			}
			got := authn.Filter(c.rules, c.gateway)
			want := &jwtv3.JwtAuthentication{}
			if err := protojson.Unmarshal([]byte(c.want), want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
			if err := got.ValidateAll(); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(before, c.rules, protocmp.Transform()); diff != "" {
				t.Error("the rules are changed:", diff)
			}
		})
	}
}

// A field of a rule that the translation does not know would be ignored.
func TestEveryFieldOfARuleChangesTheFilter(t *testing.T) {
	t.Parallel()
	plain := authn.Filter([]authn.Rule{{Spec: &securityv1.JWTRule{}, Keys: "k"}}, false)
	fields := (&securityv1.JWTRule{}).ProtoReflect().Descriptor().Fields()
	elsewhere := map[string]bool{"jwks": true, "jwks_uri": true, "timeout": true}
	for i := range fields.Len() {
		fd := fields.Get(i)
		spec := &securityv1.JWTRule{}
		text := `{"` + fd.JSONName() + `":`
		switch {
		case fd.Name() == "timeout":
			text += `"3s"}`
		case fd.IsList() && fd.Message() != nil && fd.Message().Fields().ByName("claim") != nil:
			text += `[{"header":"h","claim":"c"}]}`
		case fd.IsList() && fd.Message() != nil:
			text += `[{"name":"n"}]}`
		case fd.IsList():
			text += `["x"]}`
		case fd.Name() == "forward_original_token":
			text += `true}`
		case fd.Enum() != nil:
			text += `1}`
		default:
			text += `"x"}`
		}
		if err := protojson.Unmarshal([]byte(text), spec); err != nil {
			t.Fatalf("%s: %v", fd.Name(), err)
		}
		got := authn.Filter([]authn.Rule{{Spec: spec, Keys: "k"}}, false)
		if same := proto.Equal(got, plain); same != elsewhere[string(fd.Name())] {
			t.Errorf("%s: the filter is the same: %v", fd.Name(), same)
		}
	}
}
