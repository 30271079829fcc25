package peers;

import com.alibaba.fastjson.JSONObject;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.commons.cli.CommandLine;
import org.apache.commons.cli.Option;
import org.apache.commons.cli.Options;
import org.apache.commons.cli.PosixParser;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/** The admin tool's commands, and its client object for everything the commands do not print. */
final class Admin {
    private static final String NAMESRV_PROPERTY = "rocketmq.namesrv.addr";
    private static List<SubCommand> commands;

    private Admin() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("mqadmin", Admin::mqadmin);
        ops.put("admin.start", Admin::start);
        ops.put("topic.create", args -> query(args, admin -> createTopic(admin, args)));
        ops.put("query.byKey", args -> query(args, admin -> admin.queryMessage(
            args.getString("topic"), args.getString("key"),
            args.get("max") == null ? 32 : args.getIntValue("max"),
            args.getLongValue("begin"),
            args.get("end") == null ? Long.MAX_VALUE : args.getLongValue("end"))));
        ops.put("query.byId", args -> query(args, admin -> admin.viewMessage(
            args.getString("topic"), args.getString("msgId"))));
    }

    private interface Question {
        Object ask(DefaultMQAdminExt admin) throws Exception;
    }

    private static DefaultMQAdminExt create(JSONObject args) throws Exception {
        RPCHook hook = Producers.hook(args);
        DefaultMQAdminExt admin = hook == null ? new DefaultMQAdminExt() : new DefaultMQAdminExt(hook);
        Producers.configure(admin, args);
        admin.start();
        return admin;
    }

    private static Object start(JSONObject args) throws Exception {
        DefaultMQAdminExt admin = create(args);
        return Driver.hold("admin", new Driver.Held() {
            @Override
            public Object target() {
                return admin;
            }

            @Override
            public void shutdown() {
                admin.shutdown();
            }
        });
    }

    private static Object query(JSONObject args, Question question) throws Exception {
        if (args.get("handle") != null) {
            return question.ask(Driver.target(args, DefaultMQAdminExt.class));
        }
        DefaultMQAdminExt admin = create(args);
        try {
            return question.ask(admin);
        } finally {
            admin.shutdown();
        }
    }

    /** Creates a topic and waits until the name server tells its route, for consumers look only twice a minute. */
    private static Object createTopic(DefaultMQAdminExt admin, JSONObject args) throws Exception {
        String topic = args.getString("topic");
        int queues = args.get("queues") == null ? 4 : args.getIntValue("queues");
        TopicConfig config = new TopicConfig(topic);
        config.setReadQueueNums(queues);
        config.setWriteQueueNums(queues);
        Reflect.configure(config, args.getJSONObject("config"));
        admin.createAndUpdateTopicConfig(args.getString("broker"), config);
        long timeout = args.get("timeoutMs") == null ? 10_000 : args.getLongValue("timeoutMs");
        long deadline = System.nanoTime() + timeout * 1_000_000;
        while (true) {
            try {
                return admin.examineTopicRouteInfo(topic);
            } catch (MQClientException unknown) {
                if (System.nanoTime() > deadline) {
                    throw unknown;
                }
                Thread.sleep(10);
            }
        }
    }

    /** Runs one command and returns what it printed; one at a time, for -n is set JVM-wide. */
    private static synchronized Object mqadmin(JSONObject args) throws Exception {
        List<String> words = args.getJSONArray("args").toJavaList(String.class);
        SubCommand command = find(words.get(0)).getClass().getConstructor().newInstance();
        Options options = new Options();
        options.addOption(new Option("h", "help", false, "Print help"));
        Option namesrv = new Option("n", "namesrvAddr", true, "Name server address list");
        options.addOption(namesrv);
        options = command.buildCommandlineOptions(options);
        String[] rest = words.subList(1, words.size()).toArray(new String[0]);
        // Parsed here and not by the tool's own main, which ends the JVM on a wrong option.
        CommandLine line = new PosixParser().parse(options, rest);
        Options known = options;
        String before = System.getProperty(NAMESRV_PROPERTY);
        try {
            if (line.hasOption('n')) {
                System.setProperty(NAMESRV_PROPERTY, line.getOptionValue('n'));
            }
            String[] printed = Capture.run(ignored -> {
                command.execute(line, known, Producers.hook(args));
                return null;
            });
            Map<String, Object> result = new LinkedHashMap<>();
            result.put("out", printed[0]);
            result.put("err", printed[1]);
            return result;
        } finally {
            if (before == null) {
                System.clearProperty(NAMESRV_PROPERTY);
            } else {
                System.setProperty(NAMESRV_PROPERTY, before);
            }
        }
    }

    @SuppressWarnings("unchecked")
    private static SubCommand find(String name) throws Exception {
        if (commands == null) {
            MQAdminStartup.initCommand();
            commands = new ArrayList<>();
            for (Field field : MQAdminStartup.class.getDeclaredFields()) {
                // 5.x and 4.9 name the list differently.
                if (List.class.isAssignableFrom(field.getType())) {
                    field.setAccessible(true);
                    commands.addAll((List<SubCommand>) field.get(null));
                }
            }
        }
        for (SubCommand command : commands) {
            if (command.commandName().equalsIgnoreCase(name) || name.equalsIgnoreCase(command.commandAlias())) {
                return command;
            }
        }
        throw new IllegalArgumentException("no such mqadmin command: " + name);
    }
}
