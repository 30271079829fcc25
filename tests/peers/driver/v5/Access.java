package peers;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.embedded.EmbeddedChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.rocketmq.auth.authentication.enums.UserStatus;
import org.apache.rocketmq.auth.authentication.enums.UserType;
import org.apache.rocketmq.auth.authentication.factory.AuthenticationFactory;
import org.apache.rocketmq.auth.authentication.model.Subject;
import org.apache.rocketmq.auth.authentication.model.User;
import org.apache.rocketmq.auth.authorization.builder.DefaultAuthorizationContextBuilder;
import org.apache.rocketmq.auth.authorization.context.DefaultAuthorizationContext;
import org.apache.rocketmq.auth.authorization.enums.PolicyType;
import org.apache.rocketmq.auth.authorization.factory.AuthorizationFactory;
import org.apache.rocketmq.auth.authorization.manager.AuthorizationMetadataManager;
import org.apache.rocketmq.auth.authorization.model.Resource;
import org.apache.rocketmq.auth.authorization.provider.DefaultAuthorizationProvider;
import org.apache.rocketmq.auth.config.AuthConfig;
import org.apache.rocketmq.broker.auth.converter.AclConverter;
import org.apache.rocketmq.common.action.Action;
import org.apache.rocketmq.common.resource.ResourcePattern;
import org.apache.rocketmq.common.resource.ResourceType;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.RequestHeaderRegistry;
import org.apache.rocketmq.remoting.protocol.body.AclInfo;

/**
 * What Apache's broker decides about users, rules and requests, without a broker: its own classes, from the
 * body of an administration request to the decision, over users and rules kept in memory.
 */
final class Access {
    private static final AtomicInteger CONFIGS = new AtomicInteger();
    private static boolean registered;

    private Access() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("access.decide", args -> {
            List<Object> results = new ArrayList<>();
            for (Object each : args.getJSONArray("cases")) {
                results.add(decide((JSONObject) each));
            }
            return results;
        });
        ops.put("access.contexts", args -> {
            DefaultAuthorizationContextBuilder builder = builder(args.getString("cluster"));
            List<Object> results = new ArrayList<>();
            for (Object each : args.getJSONArray("requests")) {
                results.add(contexts(builder, (JSONObject) each));
            }
            return results;
        });
    }

    // Users and rules, their changes, and decisions about requests.

    private static Map<String, Object> decide(JSONObject one) throws Exception {
        AuthConfig config = new AuthConfig();
        // Apache's factories keep a provider for each name of a configuration.
        config.setConfigName("driver-" + CONFIGS.incrementAndGet());
        config.setAuthenticationMetadataProvider(Users.class.getName());
        config.setAuthorizationMetadataProvider(Rules.class.getName());
        for (Object each : one.getJSONArray("users")) {
            JSONObject json = (JSONObject) each;
            User user = User.of(json.getString("username"), "secret", UserType.getByName(json.getString("userType")));
            user.setUserStatus(UserStatus.getByName(json.getString("userStatus")));
            AuthenticationFactory.getMetadataProvider(config).createUser(user).join();
        }
        AuthorizationMetadataManager manager = AuthorizationFactory.getMetadataManager(config);
        List<Object> changes = new ArrayList<>();
        for (Object each : one.getJSONArray("changes")) {
            changes.add(failure(() -> change(manager, (JSONObject) each)));
        }
        DefaultAuthorizationProvider provider = new DefaultAuthorizationProvider();
        provider.initialize(config, () -> null);
        List<Object> decisions = new ArrayList<>();
        for (Object each : one.getJSONArray("requests")) {
            DefaultAuthorizationContext context = context((JSONObject) each);
            decisions.add(failure(() -> provider.authorize(context).join()));
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("changes", changes);
        result.put("decisions", decisions);
        return result;
    }

    /** As the broker's processor does it. */
    private static void change(AuthorizationMetadataManager manager, JSONObject json) {
        Subject subject = Subject.of(json.getString("subject"));
        if (json.containsKey("body")) {
            byte[] body = json.getString("body").getBytes(StandardCharsets.UTF_8);
            AclInfo info = RemotingSerializable.decode(body, AclInfo.class);
            info.setSubject(json.getString("subject"));
            manager.createAcl(AclConverter.convertAcl(info)).join();
        } else {
            PolicyType type = PolicyType.getByName(json.getString("policyType"));
            manager.deleteAcl(subject, type, Resource.of(json.getString("resource"))).join();
        }
    }

    private static DefaultAuthorizationContext context(JSONObject json) {
        Resource resource = Resource.of(
            ResourceType.getByName(json.getString("kind")), json.getString("name"), ResourcePattern.LITERAL);
        List<Action> actions = json.getJSONArray("actions").toJavaList(String.class).stream()
            .map(Action::getByName).collect(Collectors.toList());
        return DefaultAuthorizationContext.of(
            User.of(json.getString("user")), resource, actions, json.getString("source"));
    }

    private interface Attempt {
        void run() throws Exception;
    }

    /** Null when it went well. */
    private static String failure(Attempt attempt) {
        try {
            attempt.run();
            return null;
        } catch (Throwable thrown) {
            Throwable cause = thrown;
            while (cause instanceof CompletionException && cause.getCause() != null) {
                cause = cause.getCause();
            }
            return cause.getClass().getSimpleName() + ": " + cause.getMessage();
        }
    }

    // What a request needs.

    private static synchronized DefaultAuthorizationContextBuilder builder(String cluster) {
        if (!registered) {
            RequestHeaderRegistry.getInstance().initialize();
            registered = true;
        }
        AuthConfig config = new AuthConfig();
        config.setClusterName(cluster);
        return new DefaultAuthorizationContextBuilder(config);
    }

    private static Object contexts(DefaultAuthorizationContextBuilder builder, JSONObject json) {
        RemotingCommand command = RemotingCommand.createRequestCommand(json.getIntValue("code"), null);
        command.setExtFields(new HashMap<>());
        json.getJSONObject("fields").forEach((key, value) -> command.getExtFields().put(key, (String) value));
        String body = json.getString("body");
        if (body != null) {
            command.setBody(Base64.getDecoder().decode(body));
        }
        EmbeddedChannel channel = new EmbeddedChannel(new ChannelInboundHandlerAdapter());
        ChannelHandlerContext context = channel.pipeline().firstContext();
        List<Object> needs = new ArrayList<>();
        String failure = failure(() -> {
            List<DefaultAuthorizationContext> found = builder.build(context, command);
            for (DefaultAuthorizationContext each : found) {
                Map<String, Object> need = new LinkedHashMap<>();
                need.put("resource", each.getResource().getResourceKey());
                need.put("actions", each.getActions().stream().map(Action::getName).collect(Collectors.toList()));
                needs.add(need);
            }
        });
        channel.close();
        return failure == null ? needs : failure;
    }
}
