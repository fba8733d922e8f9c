package authzcheck

import (
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1 "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/xds/authn"
	"github.com/fairlead/fairlead/xds/authz/judge"
)

// TestKnownOfAToken: what rules get to know of a good token, and which one is refused.
func TestKnownOfAToken(t *testing.T) {
	t.Parallel()
	rule := func(checkOnly bool, keys string) authn.Rule {
		return authn.Rule{Spec: &securityv1.JWTRule{Issuer: "a", Audiences: []string{"us"}}, Keys: keys, CheckOnly: checkOnly}
	}
	writes := authn.Rule{Spec: &securityv1.JWTRule{Issuer: "a", OutputPayloadToHeader: "x-a"}, Keys: "k"}
	// Two rules are for others, the third only checks, and the last would tell.
	eleven := make([]authn.Rule, 11)
	for i := range eleven {
		eleven[i] = authn.Rule{Spec: &securityv1.JWTRule{Issuer: "a", Audiences: []string{"them"}}, Keys: "k"}
	}
	eleven[2], eleven[10] = rule(true, "k"), rule(false, "k")
	for name, x := range map[string]struct {
		filter *jwtv3.JwtAuthentication
		claims string
		off    bool
		want   string // empty: refused
	}{
		"without rules":        {&jwtv3.JwtAuthentication{}, `{"iss":"a"}`, false, `{}`},
		"good":                 {authn.Filter([]authn.Rule{rule(false, "k")}, false), `{"iss":"a","aud":"us","scope":"x y"}`, false, `{"payload":{"iss":"a","aud":"us","scope":["x","y"]}}`},
		"several audiences":    {authn.Filter([]authn.Rule{rule(false, "k")}, false), `{"iss":"a","aud":["x","us"]}`, false, `{"payload":{"iss":"a","aud":["x","us"]}}`},
		"other issuer":         {authn.Filter([]authn.Rule{rule(false, "k")}, false), `{"iss":"b","aud":"us"}`, false, ``},
		"other audience":       {authn.Filter([]authn.Rule{rule(false, "k")}, false), `{"iss":"a","aud":"them"}`, false, ``},
		"no audience":          {authn.Filter([]authn.Rule{rule(false, "k")}, false), `{"iss":"a"}`, false, ``},
		"no keys":              {authn.Filter([]authn.Rule{rule(false, "")}, false), `{"iss":"a","aud":"us"}`, false, ``},
		"keys are not fetched": {authn.Filter([]authn.Rule{rule(false, "")}, false), `{"iss":"a","aud":"us"}`, true, `{"payload":{"iss":"a","aud":"us"}}`},
		"second rule":          {authn.Filter([]authn.Rule{rule(false, ""), rule(false, "k")}, false), `{"iss":"a","aud":"us"}`, false, `{"payload":{"iss":"a","aud":"us"}}`},
		"third of eleven":      {authn.Filter(eleven, false), `{"iss":"a","aud":"us"}`, false, `{}`},
		"with output headers":  {authn.Filter([]authn.Rule{writes}, false), `{"iss":"a"}`, false, `{"payload":{"iss":"a"}}`},
		"of no issuer":         {authn.Filter([]authn.Rule{writes}, false), `{"iss":"` + authn.OutputHeaders + `"}`, true, ``},
		"checked only":         {authn.Filter([]authn.Rule{rule(true, "k")}, false), `{"iss":"a","aud":"us"}`, false, `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claims, want := &structpb.Struct{}, &structpb.Struct{}
			if err := protojson.Unmarshal([]byte(x.claims), claims); err != nil {
				t.Fatal(err)
			}
			got, _, err := checkTokens(x.filter, Question{Claims: claims, Offline: x.off}, &judge.Request{Method: "GET", Path: "/"})
			if x.want == "" {
				if err == nil {
					t.Errorf("it is accepted: %v", got)
				}
				return
			}
			if err := protojson.Unmarshal([]byte(x.want), want); err != nil {
				t.Fatal(err)
			}
			if err != nil || !proto.Equal(got, want) {
				t.Errorf("%v, %v, want %v", got, err, want)
			}
		})
	}
}

// TestTokensOfTheRequest: tokens in the request itself are judged where the rules look for them,
// and rules see the headers that the application would.
func TestTokensOfTheRequest(t *testing.T) {
	t.Parallel()
	tokenOf := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".AA"
	}
	a, b := tokenOf(`{"iss":"a","deep":{"group":"x"},"n":1700000000,"ok":true}`), tokenOf(`{"iss":"b"}`)
	plain := authn.Rule{Spec: &securityv1.JWTRule{Issuer: "a"}, Keys: "k"}
	places := authn.Rule{Spec: &securityv1.JWTRule{
		Issuer: "b", FromHeaders: []*securityv1.JWTHeader{{Name: "x-token", Prefix: "T "}}, FromParams: []string{"t"}, FromCookies: []string{"c"}, ForwardOriginalToken: true,
	}, Keys: "k"}
	writes := authn.Rule{Spec: &securityv1.JWTRule{Issuer: "a", OutputPayloadToHeader: "x-payload", OutputClaimToHeaders: []*securityv1.ClaimToHeader{
		{Header: "x-group", Claim: "deep.group"}, {Header: "x-n", Claim: "n"}, {Header: "x-ok", Claim: "ok"}, {Header: "x-none", Claim: "deep"},
	}}, Keys: "k"}
	checks := writes
	checks.CheckOnly = true
	nobody := &jwtv3.JwtAuthentication{
		Providers: map[string]*jwtv3.JwtProvider{"nobody": {Issuer: "nobody", JwksSourceSpecifier: &jwtv3.JwtProvider_LocalJwks{LocalJwks: &corev3.DataSource{
			Specifier: &corev3.DataSource_InlineString{},
		}}}},
		Rules: []*jwtv3.RequirementRule{{
			Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			RequirementType: &jwtv3.RequirementRule_Requires{Requires: &jwtv3.JwtRequirement{
				RequiresType: &jwtv3.JwtRequirement_ProviderName{ProviderName: "nobody"},
			}},
		}},
	}
	one, two, out := authn.Filter([]authn.Rule{plain}, false), authn.Filter([]authn.Rule{plain, places}, false), authn.Filter([]authn.Rule{writes, places}, false)
	bearer := func(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }
	forged := func(h http.Header) http.Header {
		h = h.Clone()
		for _, name := range []string{"X-Group", "x-n", "X-OK", "X-Payload"} {
			h[name] = []string{"forged", "again"}
		}
		h["X-Other"] = []string{"x"}
		return h
	}
	preflight := func(token string) http.Header {
		h := bearer(token)
		h["Origin"], h["Access-Control-Request-Method"] = []string{"http://a"}, []string{"GET"}
		return h
	}
	for name, x := range map[string]struct {
		filter  *jwtv3.JwtAuthentication
		path    string
		headers http.Header
		method  string
		why     string // of the refusal; empty: it passes
		issuer  string // that rules get to know
		after   http.Header
	}{
		"nothing":                   {one, "/", http.Header{}, "GET", "", "", nil},
		"good":                      {one, "/", bearer(a), "GET", "", "a", http.Header{}},
		"in lower case":             {one, "/", http.Header{"authorization": {"Bearer " + a}}, "GET", "", "a", http.Header{}},
		"without the prefix":        {one, "/", http.Header{"Authorization": {a}}, "GET", "", "", nil},
		"of another issuer":         {one, "/", bearer(b), "GET", `(401): no RequestAuthentication for this workload has its issuer (iss), "b"`, "", nil},
		"no token":                  {one, "/", bearer("x"), "GET", "(401): it is no token", "", nil},
		"not in base64":             {one, "/", bearer("a.?.c"), "GET", "(401): it is no token", "", nil},
		"no claims":                 {one, "/", bearer("e30.W10.AA"), "GET", "(401): it is no token", "", nil},
		"parameter by default":      {one, "/?access_token=" + a, http.Header{}, "GET", "", "a", nil},
		"bad parameter":             {one, "/?access_token=x", http.Header{}, "GET", "it is no token", "", nil},
		"good and bad":              {one, "/?access_token=x", bearer(a), "GET", "it is no token", "", nil},
		"two in headers":            {one, "/", http.Header{"Authorization": {"Bearer " + a, "Bearer x"}}, "GET", "it is no token", "", nil},
		"second rule":               {two, "/", http.Header{"X-Token": {"T " + b}}, "GET", "", "b", nil},
		"second rule, parameter":    {two, "/?t=" + b, http.Header{}, "GET", "", "b", nil},
		"second rule, cookie":       {two, "/", http.Header{"Cookie": {"x=y; c=" + b}}, "GET", "", "b", nil},
		"second rule, elsewhere":    {two, "/", bearer(b), "GET", "has its issuer", "", nil},
		"first rule, elsewhere":     {two, "/", http.Header{"X-Token": {"T " + a}}, "GET", "has its issuer", "", nil},
		"bad beside a good one":     {two, "/", http.Header{"Authorization": {"Bearer " + a}, "X-Token": {"T x"}}, "GET", "", "a", http.Header{"X-Token": {"T x"}}},
		"claims in headers":         {out, "/", forged(bearer(a)), "GET", "", "a", http.Header{"X-Group": {"x"}, "X-N": {"1700000000"}, "X-Ok": {"true"}, "X-Other": {"x"}}},
		"forged headers":            {out, "/", forged(http.Header{}), "GET", "", "", http.Header{"X-Other": {"x"}}},
		"forged, the other's token": {out, "/", forged(http.Header{"X-Token": {"T " + b}}), "GET", "", "b", http.Header{"X-Other": {"x"}, "X-Token": {"T " + b}}},
		"forged, check only":        {authn.Filter([]authn.Rule{checks}, false), "/", forged(bearer(a)), "GET", "", "", http.Header{"X-Other": {"x"}}},
		"preflight":                 {one, "/", preflight("x"), "OPTIONS", "", "", nil},
		"preflight, output headers": {out, "/", forged(preflight("x")), "OPTIONS", "", "", http.Header{
			"X-Other": {"x"}, "Authorization": {"Bearer x"}, "Origin": {"http://a"}, "Access-Control-Request-Method": {"GET"},
		}},
		"no preflight":                  {out, "/", preflight("x"), "GET", "it is no token", "", nil},
		"the header that nobody sends":  {out, "/", http.Header{"X-Fairlead-Nowhere": {a}}, "GET", "has its issuer", "", nil},
		"nobody's, without a token":     {nobody, "/", http.Header{}, "GET", "every request is refused (401)", "", nil},
		"nobody's, with a token":        {nobody, "/", bearer(a), "GET", "every request is refused (401)", "", nil},
		"nobody's, with its name":       {nobody, "/", bearer(tokenOf(`{"iss":"nobody"}`)), "GET", "every request is refused (401)", "", nil},
		"a path that no rule speaks of": {one, "*", bearer("x"), "OPTIONS", "", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := x.headers.Clone()
			r := &judge.Request{Method: x.method, Path: x.path, Headers: x.headers}
			known, _, err := checkTokens(x.filter, Question{}, r)
			if x.why != "" {
				if _, refused := errors.AsType[*tokenError](err); !refused || !strings.Contains(err.Error(), x.why) {
					t.Errorf("%v, want %q", err, x.why)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := known.GetFields()["payload"].GetStructValue().GetFields()["iss"].GetStringValue(); got != x.issuer {
				t.Errorf("rules know of a token of %q, want %q", got, x.issuer)
			}
			if x.after == nil {
				x.after = before
			}
			if diff := cmp.Diff(x.after, http.Header(r.Headers)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(before, x.headers); diff != "" {
				t.Error("the question is changed:", diff)
			}
		})
	}
}
