package peers;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.LanguageCode;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.SerializeType;

/** RocketMQ's own encoders and decoders, for golden data, and its bare remoting client. */
final class Codec {
    private Codec() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("codec.encode", args -> array(command(args).encode()));
        ops.put("codec.decode", args -> decode(Base64.getDecoder().decode(args.getString("bytes"))));
        ops.put("codec.decodeMessages", args -> MessageDecoder.decodes(
            ByteBuffer.wrap(Base64.getDecoder().decode(args.getString("bytes")))));
        ops.put("codec.encodeMessages", args -> MessageDecoder.encodeMessages(
            Producers.messages(args.getJSONArray("messages"))));
        ops.put("codec.hashCode", args -> {
            List<Integer> result = new ArrayList<>();
            JSONArray strings = args.getJSONArray("strings");
            for (int i = 0; i < strings.size(); i++) {
                result.add(strings.getString(i).hashCode());
            }
            return result;
        });
        ops.put("remoting.start", Codec::startRemoting);
        ops.put("remoting.invoke", Codec::invoke);
    }

    private static byte[] array(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes;
    }

    /** A command from its parts; "header" names a custom header class and gives its fields. */
    private static RemotingCommand command(JSONObject args) throws Exception {
        CommandCustomHeader header = null;
        if (args.getString("header") != null) {
            Class<?> type = Class.forName(args.getString("header"));
            String fields = args.getJSONObject("fields").toJSONString();
            header = (CommandCustomHeader) JSON.parseObject(fields, type);
        }
        RemotingCommand command = RemotingCommand.createRequestCommand(args.getIntValue("code"), header);
        if (args.get("opaque") != null) {
            command.setOpaque(args.getIntValue("opaque"));
        }
        if (args.get("flag") != null) {
            command.setFlag(args.getIntValue("flag"));
        }
        if (args.get("version") != null) {
            command.setVersion(args.getIntValue("version"));
        }
        if (args.get("language") != null) {
            command.setLanguage(LanguageCode.valueOf(args.getString("language")));
        }
        if (args.get("serializeType") != null) {
            command.setSerializeTypeCurrentRPC(SerializeType.valueOf(args.getString("serializeType")));
        }
        command.setRemark(args.getString("remark"));
        JSONObject extFields = args.getJSONObject("extFields");
        if (extFields != null) {
            HashMap<String, String> fields = new HashMap<>();
            extFields.keySet().forEach(name -> fields.put(name, extFields.getString(name)));
            command.setExtFields(fields);
        }
        if (args.get("body") != null) {
            command.setBody(Base64.getDecoder().decode(args.getString("body")));
        }
        return command;
    }

    /** Decodes a frame, with or without its leading total length. */
    private static Object decode(byte[] bytes) throws Exception {
        ByteBuffer buffer = ByteBuffer.wrap(bytes);
        if (bytes.length >= 4 && buffer.getInt(0) == bytes.length - 4) {
            buffer.position(4);
        }
        return RemotingCommand.decode(buffer.slice());
    }

    private static Object startRemoting(JSONObject args) throws Exception {
        NettyClientConfig config = new NettyClientConfig();
        Reflect.configure(config, args.getJSONObject("options"));
        NettyRemotingClient client = new NettyRemotingClient(config);
        if (args.get("accessKey") != null) {
            client.registerRPCHook(Producers.hook(args));
        }
        client.start();
        return Driver.hold("remoting", new Driver.Held() {
            @Override
            public Object target() {
                return client;
            }

            @Override
            public void shutdown() {
                client.shutdown();
            }
        });
    }

    private static Object invoke(JSONObject args) throws Exception {
        NettyRemotingClient client = Driver.target(args, NettyRemotingClient.class);
        long timeout = args.get("timeoutMs") == null ? 3000 : args.getLongValue("timeoutMs");
        if (args.getBooleanValue("oneway")) {
            client.invokeOneway(args.getString("address"), command(args), timeout);
            return null;
        }
        return client.invokeSync(args.getString("address"), command(args), timeout);
    }
}
