package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"
)

// next asks the next service.
type next func(ctx context.Context, path string) (*answer, error)

// newNext is nil where there is no next service.
func newNext(target, host string) (next, error) {
	switch {
	case target == "":
		return nil, nil //nolint:nilnil // no next service is a legitimate answer
	case strings.HasPrefix(target, "http://"):
		return nextHTTP(target, host), nil
	case strings.HasPrefix(target, "grpc://"):
		return nextGRPC(strings.TrimPrefix(target, "grpc://"), host)
	default:
		return nil, fmt.Errorf("next service %q: write http://ADDRESS or grpc://ADDRESS", target)
	}
}

func nextHTTP(target, host string) next {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	return func(ctx context.Context, path string) (*answer, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, target+path, http.NoBody)
		if err != nil {
			return nil, err
		}
		req.Host = host
		res, err := client.Do(req)
		if err != nil {
			return nil, err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return nil, err
		}
		if res.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("%s answered %d: %s", host, res.StatusCode, body)
		}
		var a answer
		return &a, json.Unmarshal(body, &a)
	}
}

func nextGRPC(target, host string) (next, error) {
	conn, err := grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(host))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, _ string) (*answer, error) {
		var out structpb.Struct
		if err := conn.Invoke(ctx, stockMethod, &structpb.Struct{}, &out); err != nil {
			return nil, fmt.Errorf("%s: %w", host, err)
		}
		return &answer{Name: out.GetFields()["name"].GetStringValue(), Caller: out.GetFields()["caller"].GetStringValue()}, nil
	}, nil
}
