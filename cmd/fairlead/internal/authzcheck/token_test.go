package authzcheck

import (
	"testing"

	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1 "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/xds/authn"
)

// TestKnownOfAToken: what rules get to know of a good token, and which one is refused.
func TestKnownOfAToken(t *testing.T) {
	t.Parallel()
	rule := func(checkOnly bool, keys string) authn.Rule {
		return authn.Rule{Spec: &securityv1.JWTRule{Issuer: "a", Audiences: []string{"us"}}, Keys: keys, CheckOnly: checkOnly}
	}
	writes := authn.Rule{Spec: &securityv1.JWTRule{Issuer: "a", OutputPayloadToHeader: "x-a"}, Keys: "k"}
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
			got, err := known(x.filter, Question{Claims: claims, Offline: x.off})
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
